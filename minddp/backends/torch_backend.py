"""torch.distributed itself: gloo on CPUs, NCCL where each rank has a GPU.

The ranks are started by torchrun, Slurm's srun, or `minddp.launch`; the backend reads from the
environment where it stands, or takes up the process group that is there already.
"""

from __future__ import annotations

import math
import os
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from minddp.backends.communication import CHOICES, Card, choose_communication, usable_gpus
from minddp.backends.distributed_backend import DistributedBackend
from minddp.backends.environment import Place, node_name, place_from_environment
from minddp.backends.installation import BackendUnavailable
from minddp.backends.meeting import meet, open_store
from minddp.backends.named_barrier import NamedBarrier
from minddp.backends.waiting import missing_after_wait
from minddp.factory import DistributedModel

GOODBYE_SECONDS = 5.0  # that the keeper of the store waits for ranks that still need it


class TorchBackend(DistributedBackend):
    """The default process group of torch.distributed, and our DDP classes on top.

    Under srun, or torchrun with an address, rank 0 keeps the store in which the ranks meet. So let
    every rank end with shutdown(), or the with statement: it lets rank 0 go last.

    Args:
        communication: "gloo" or "nccl"; None for NCCL if each rank has a visible GPU, else gloo.
        timeout: seconds; the longest wait in initialize(), a barrier or a collective.
        local_rank: as a launcher's flag gave it; None for LOCAL_RANK, or else counted on the host.
        ddp_backend, ddp_options: how `distribute` wraps the model, see `DistributedModel`.
    """

    BACKEND_MODULE_NAME = "torch.distributed"
    BACKEND_NAME = "Torch"

    def __init__(
        self,
        communication: str | None = None,
        timeout: float = 300.0,
        local_rank: int | None = None,
        ddp_backend: str = "overlapped",
        ddp_options: dict[str, Any] | None = None,
    ) -> None:
        if communication is not None and communication not in CHOICES:
            raise ValueError(
                f"unknown communication {communication!r}; choose from {', '.join(CHOICES)}, or "
                "None for what fits the machine (an Apple GPU has none: use gloo on the CPU)"
            )
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.communication = communication
        self.timeout = timeout
        self.device = torch.device("cpu")
        self._given_local_rank = local_rank
        self._ddp_backend, self._ddp_options = ddp_backend, dict(ddp_options or {})
        self._wanted = communication
        self._owns_group = False
        self._barriers: dict[str, NamedBarrier] = {}

    @classmethod
    def import_backend(cls) -> ModuleType:
        """Import torch.distributed; BackendUnavailable if torch was built without it."""
        module = super().import_backend()
        if not dist.is_available():
            raise BackendUnavailable(
                "torch is installed, but was built without torch.distributed; use DummyBackend, or "
                "another build of torch",
                "half installed",
            )
        return module

    def _initialize(self) -> None:
        if dist.is_initialized():
            self._take_up_group()
        else:
            self._make_group()

    def _make_group(self) -> None:
        place = place_from_environment()
        store = open_store(place, self.timeout)
        self._meet(store, place)
        self._bind_device()
        self._owns_group = True
        dist.init_process_group(
            self.communication,
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=self.timeout),
        )

    def _take_up_group(self) -> None:
        """Use the group that `minddp.launch` or the caller has made; it stays theirs."""
        rank, size, kind = dist.get_rank(), dist.get_world_size(), str(dist.get_backend())
        faults = [
            f"{name}={os.environ[name]}, but the group says {value}"
            for name, value in (("RANK", rank), ("WORLD_SIZE", size))
            if os.environ.get(name, str(value)) != str(value)
        ]
        if self._wanted not in (None, kind):
            faults.append(f"{self._wanted} was asked for, but the group uses {kind}")
        if faults:
            raise ValueError(
                f"there is a process group already, with other settings: {'; '.join(faults)}. "
                "Leave it first, or ask for the same"
            )
        store = _default_store()
        local_rank = os.environ.get("LOCAL_RANK", "")
        number = int(local_rank) if local_rank.isdecimal() else None
        place = Place(rank, size, "", 0, node_name(os.environ, rank, number), number)
        number_of_meeting = store.add(f"minddp takes up the group/{rank}", 1)
        self._meet(PrefixStore(f"minddp taken up {number_of_meeting}", store), place)
        self.communication = kind
        self._bind_device()

    def _meet(self, store: Store, place: Place) -> None:
        """Find out who is on which host, and what to communicate with."""
        card = Card(place.node, place.world_size, usable_gpus(), self._wanted)
        cards = meet(store, place.rank, card, self.timeout)
        if not dist.is_initialized():
            self.communication = choose_communication(cards)
        neighbours = [rank for rank, other in enumerate(cards) if other.node == place.node]
        known = [self._given_local_rank, place.local_rank, neighbours.index(place.rank)]
        self._local_rank = next(number for number in known if number is not None)
        self._place, self._store = place, store
        everyone = list(range(place.world_size))
        for name, members in (("all", everyone), ("local", neighbours)):
            part = PrefixStore(name, store)
            self._barriers[name] = NamedBarrier(part, place.rank, members)

    def _bind_device(self) -> None:
        if self.communication == "nccl":
            self.device = torch.device("cuda", self._local_rank)
            torch.cuda.set_device(self.device)

    def _shutdown(self) -> None:
        owned, self._owns_group = self._owns_group, False
        self.communication, self.device = self._wanted, torch.device("cpu")
        if owned and dist.is_initialized():
            dist.destroy_process_group()
        barriers, self._barriers = self._barriers, {}
        for barrier in barriers.values():
            barrier.leave()
        if owned and self._place.rank == 0:  # it may keep the store, so it goes last
            others = {rank: f"all/left/{rank}" for rank in range(self._place.world_size)}
            missing_after_wait(self._store, others, GOODBYE_SECONDS, str)

    def _get_world_size(self) -> int:
        return self._place.world_size

    def _get_rank(self) -> int:
        return self._place.rank

    def _get_local_rank(self) -> int:
        return self._local_rank

    def _barrier(self, name: str, timeout: float | None) -> None:
        self._barriers["all"].wait(name, self.timeout if timeout is None else timeout)

    def _local_barrier(self, name: str, timeout: float | None) -> None:
        self._barriers["local"].wait(name, self.timeout if timeout is None else timeout)

    def _average_all(self, tensor: Tensor, group: Any) -> Tensor:
        size = dist.get_world_size(group)
        if size < 1:
            raise ValueError(
                f"rank {self._place.rank} is not a member of the group it is to average over"
            )
        if self.communication == "nccl":
            tensor = tensor.to(self.device)
        dist.all_reduce(tensor, group=group)
        return tensor / size

    def _from_root(self, packed: bytes) -> bytes:
        carrier = [packed]
        dist.broadcast_object_list(carrier, src=self.ROOT_RANK)
        return carrier[0]

    def _distribute(self, model: nn.Module, optimizer: Any, lr_scheduler: Any) -> Any:
        if self.communication == "nccl":
            model.to(self.device)  # in place: the optimizer keeps its parameters
        twin = DistributedModel(model, self._ddp_backend, **self._ddp_options)
        return twin, optimizer, lr_scheduler


def _default_store() -> Store:
    """The store of the default group. torch has no public name for it."""
    store: Store = dist.distributed_c10d._get_default_store()
    return store
