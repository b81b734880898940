"""Rung 4: buckets that are sent while backward is still running.

Gradients become ready one by one, the last layer's first. As soon as all gradients of a bucket are
there, its all-reduce starts, and travels while autograd works on the next ones. At the end of
backward only the last bucket is still to come. This is torch's DDP (Li et al., VLDB 2020).

Two rules keep the ranks together: buckets are the same on every rank, and they are launched in the
order of their index, never in the order in which they happen to be complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from minddp.buckets import group_by_kind, plan_buckets
from minddp.ddp.base import BaseDDP
from minddp.ddp.bucket import Bucket
from minddp.ddp.comm_hook import Hook, HookedBucket, check_hook, share_flags

MiB = 2**20


class OverlappedDDP(BaseDDP):
    """Averages gradients in buckets, during backward.

    The first backward only watches: in which order do gradients arrive, and does one arrive twice?
    Then buckets are planned once more, in the order that rank 0 saw, and from the second backward
    on they are launched as they fill.

    Args:
        bucket_cap_mb: a bucket is closed when it reaches this size, in MiB.
        first_bucket_mb: the same for the first bucket, small so that sending starts early.
        bucket_cap_mb_list: in place of the two, one size for each bucket, the last for all that
            follow; as in torch.
        gradient_as_bucket_view: let gradients be views of the buckets. Saves a copy and memory;
            but a gradient that you keep from one step is overwritten in the next.
        comm_hook: what to do in place of the all-reduce, ``hook(state, bucket) -> Future`` as in
            torch; or ``(state, hook)``.

    Other arguments and errors: see `BaseDDP`."""

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        *,
        bucket_cap_mb: float | None = 25,
        first_bucket_mb: float = 1,
        bucket_cap_mb_list: Sequence[float] = (),
        gradient_as_bucket_view: bool = False,
        comm_hook: Hook | tuple[Any, Hook] | None = None,
        **options: Any,
    ) -> None:
        rest = 25.0 if bucket_cap_mb is None else bucket_cap_mb
        sizes = list(bucket_cap_mb_list) or [min(first_bucket_mb, rest), rest]
        for size in [*sizes, first_bucket_mb]:
            if not size >= 0:
                raise ValueError(f"a bucket's size is a number of MiB, 0 or more, not {size!r}")
        self.bucket_sizes_mb = sizes
        self.bucket_bytes_cap_list = [int(size * MiB) for size in bucket_cap_mb_list]  # torch's
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.comm_hook: tuple[Any, Hook] | None = None
        super().__init__(module, process_group, **options)
        if comm_hook is not None:
            state, hook = comm_hook if isinstance(comm_hook, tuple) else (None, comm_hook)
            self.register_comm_hook(state, hook)

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Replace the all-reduce of a bucket by ``hook(state, bucket)``.

        Raises:
            TypeError, ValueError: not a hook.
            RuntimeError: there is one already.
        """
        check_hook(hook)
        if self.comm_hook is not None:
            raise RuntimeError("register_comm_hook can be called once; this model has a hook")
        self.comm_hook = (state, hook)
        self._build_buckets(list(self._order))

    # ------------------------------------------------------------------ planning

    def _scan(self) -> None:
        super()._scan()
        self._arrived: dict[Parameter, int] = {}  # how often, in order of the first arrival
        self._watching = True
        self._deferred: set[Parameter] = set()
        self._build_buckets(list(reversed(self._dense)))

    def _build_buckets(self, order: list[Parameter]) -> None:
        """Plan buckets for gradients that arrive in this order."""
        position = {param: place for place, param in enumerate(order)}
        capacities = [size * MiB for size in self.bucket_sizes_mb]
        groups = []
        for kind in group_by_kind(order):
            sizes = [param.numel() * param.element_size() for param in kind]
            plan = plan_buckets(sizes, capacities, mode="threshold")
            groups += [[kind[index] for index in indices] for indices in plan]
        groups.sort(key=lambda params: position[params[-1]])  # by when they will be complete
        self._order = order
        self._buckets: list[Bucket] = []
        for params in groups:
            last = len(self._buckets) == len(groups) - 1
            self._buckets.append(self._new_bucket({p: self._dense[p] for p in params}, last))
        # By id: hashing a tensor calls Python, once a parameter in each backward.
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._forget()

    def _new_bucket(self, parameters: dict[Parameter, str], last: bool) -> Bucket:
        group, as_view = self.process_group, self.gradient_as_bucket_view
        if self.comm_hook is None:
            return Bucket(parameters, group, len(self._buckets), as_view=as_view)
        previous = self._buckets[-1] if self._buckets else None
        return HookedBucket(parameters, group, self.comm_hook, previous, last, as_view)

    def _plan_by_arrival(self) -> None:
        """Agree on buckets in the order in which gradients arrived on one rank, for all ranks."""
        every = list(self._dense)
        if not every:
            return
        index = {param: place for place, param in enumerate(every)}
        arrived = [index[p] for p in self._arrived]
        rest = [place for place in reversed(range(len(every))) if every[place] not in self._arrived]
        order = torch.tensor(arrived + rest if arrived else [-1] * len(every))
        order = order.to(every[0].device)
        source = self._join.source if self._join else 0
        dist.broadcast(order, dist.get_global_rank(self.process_group, source), self.process_group)
        places: list[int] = order.tolist()
        if places[0] >= 0:  # else that rank has seen no backward yet
            self._deferred = {p for p, times in self._arrived.items() if times > 1}
            self._watching = False
            self._build_buckets([every[place] for place in places])

    # ------------------------------------------------------------------ backward

    def _start_over(self) -> None:
        """A backward that failed half-way may have left buckets on their way: let them arrive."""
        for bucket in self._buckets:
            bucket.abandon()
        self._forget()
        self._arrived.clear()

    def _one_is_ready(self, param: Parameter) -> None:
        bucket = self._bucket_of.get(id(param))
        if bucket is None:  # a sparse one
            return
        if self._watching:
            self._arrived[param] = self._arrived.get(param, 0) + 1
            return
        if bucket.index < self._next:
            raise self._second_arrival(param)
        ready = self._ready[bucket.index]
        ready.add(id(param))
        if len(ready) == len(bucket.parameters):
            self._launch_complete()

    def _launch_complete(self) -> None:
        """Launch buckets in index order, as far as they are complete."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            complete = len(self._ready[bucket.index]) == len(bucket.parameters)
            if not complete or self._deferred.intersection(bucket.parameters):
                return
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        if self._silent:
            bucket.pack_nothing()
        else:
            bucket.pack(self.divisor if self.comm_hook is None else 1.0)  # a hook divides itself
        self._launch(bucket)
        self._next += 1

    def _second_arrival(self, param: Parameter) -> RuntimeError:
        return RuntimeError(
            f"rank {self.rank}: {self._dense[param]} got a second gradient in one backward, after "
            "the first was sent. Re-entrant checkpointing of a shared layer does this if it was "
            "not so in the first backward; pass use_reentrant=False to checkpoint."
        )

    def _reduce(self) -> None:
        """End of backward: send what is not on its way yet, then wait for everything."""
        for bucket in self._buckets[self._next :]:
            self._send(bucket)
        if self.comm_hook is not None and self._buckets:
            share_flags(self._buckets, self.process_group)
        for bucket in self._buckets:
            self._finish(bucket)
        self._forget()
        if self._watching:
            self._plan_by_arrival()

    def _forget(self) -> None:
        self._next = 0  # index of the bucket to send next
        self._ready: list[set[int]] = [set() for _ in self._buckets]  # which gradients are there
