"""The abstract backend: one vocabulary for every way to run a training on several processes.

A training script talks to a backend, not to the library behind it: which rank am I, split this
data, average this loss. The vocabulary is that of DALLE-pytorch's `DistributedBackend`, and so is
the pattern (template method): each public method checks that the backend is initialised and then
calls its underscore twin, and a new backend overrides the twins and nothing else.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from minddp.backends.averages import as_summable, like_input
from minddp.backends.data_share import data_share, rows_per_rank
from minddp.backends.lifecycle import Lifecycle
from minddp.backends.overrides import check_overrides
from minddp.backends.part_checks import check_parts
from minddp.backends.twins import BackendTwins


class DistributedBackend(Lifecycle):
    """What every backend can do. Use it as ``with backend:``, or initialize() and shutdown().

    A subclass names itself and overrides all abstract twins, with the same parameter names; what is
    missing or mistyped is a TypeError when the class is made, not when a training is under way. A
    class that is to stay abstract says so: ``class Mine(DistributedBackend, abstract=True)``.
    """

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not abstract:
            check_overrides(cls, BackendTwins)

    def wrap_arg_parser(self, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add this backend's own flags, if it has any."""
        return parser

    # -- places -------------------------------------------------------------------------------

    def get_world_size(self) -> int:
        """The number of ranks."""
        self.require_init()
        return self._get_world_size()

    def get_rank(self) -> int:
        """The number of this process among all, 0 to world size - 1."""
        self.require_init()
        return self._get_rank()

    def get_local_rank(self) -> int:
        """The number of this process among those on its host. Good for choosing a GPU; who writes
        a file is decided by `is_root_worker`."""
        self.require_init()
        return self._get_local_rank()

    def is_root_worker(self) -> bool:
        """Is this the one root among all ranks?"""
        return self.get_rank() == self.ROOT_RANK

    def is_local_root_worker(self) -> bool:
        """Is this the root of its host? There is one on each host."""
        return self.get_local_rank() == self.LOCAL_ROOT_RANK

    # -- waiting and agreeing: every rank must call these -------------------------------------

    def barrier(self, name: str = "barrier", timeout: float | None = None) -> None:
        """Wait until every rank is in the barrier of this name.

        Raises:
            RuntimeError: ranks are in differently named barriers; on all ranks, and at once.
            TimeoutError: after `timeout` seconds (None: the backend's); who waits, who is missing.
        """
        self.require_init()
        self._barrier(name, timeout)

    def local_barrier(self, name: str = "local barrier", timeout: float | None = None) -> None:
        """The same among the ranks of this host alone."""
        self.require_init()
        self._local_barrier(name, timeout)

    def average_all(self, value: Tensor | float | bool, group: Any = None) -> Tensor:
        """The mean over all ranks, or those of a process group: the same values on each of them.

        Args:
            value: a tensor of the same shape and dtype on each rank, or a number.
            group: for backends with process groups; this rank must be a member.

        Returns:
            A new tensor without a graph, of the input's shape, device and dtype; integers and
            bools come back in torch's default float type. The input stays as it is.
        """
        self.require_init()
        return like_input(self._average_all(as_summable(value), group), value)

    def any_rank(self, flag: bool | Tensor) -> bool:
        """Is it true on some rank? "Stop early?" must be asked this way: a rank that decides
        alone leaves the others waiting for it."""
        return self.average_all(float(bool(flag))).item() > 0.0

    def all_ranks(self, flag: bool | Tensor) -> bool:
        """Is it true on every rank?"""
        return not self.any_rank(not flag)

    def from_root(self, obj: Any = None) -> Any:
        """The root's object, on every rank; what the others give is ignored. It is pickled.

        Raises RuntimeError on every rank if it cannot be.
        """
        self.require_init()
        packed = b""
        if self.is_root_worker():
            packed = _pack(obj)
        kind, value = pickle.loads(self._from_root(packed))
        if kind == "error":
            raise RuntimeError(f"the root's object cannot be sent: {value}")
        return obj if self.is_root_worker() else value

    @contextmanager
    def root_first(self) -> Iterator[None]:
        """``with backend.root_first(): download()``: the root goes through the block alone, and
        then all others. If the root raises there, the others raise a RuntimeError that says what.
        """
        if not self.is_root_worker():
            failure = self.from_root()
            if failure:
                raise RuntimeError(f"the root failed inside root_first(): {failure}")
            yield
            return
        failure = "it was interrupted"
        try:
            yield
            failure = ""
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.from_root(failure)

    # -- training -----------------------------------------------------------------------------

    def check_batch_size(self, batch_size: int) -> int:
        """Rows for each rank of a *global* batch of `batch_size` rows.

        Raises TypeError or ValueError if it is no whole number, or not to be split evenly.
        """
        return rows_per_rank(batch_size, self.get_world_size())

    def distribute(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        training_data: DataLoader[Any] | None = None,
        lr_scheduler: Any = None,
    ) -> tuple[Any, Any, Any, Any]:
        """The twins to train with: (model, optimizer, data, scheduler), None where None is given.

        Keep the bare model as well: the twin is for the forward pass, the bare one for checkpoints
        and metrics. `training_data` has the *global* batch size and, with ``shuffle=True``, an
        order that is the same for any number of ranks; call ``data.sampler.set_epoch(epoch)``.

        Raises:
            TypeError, ValueError: parts that do not belong together, data that cannot be split.
        """
        self.require_init()
        check_parts(model, optimizer, training_data, lr_scheduler)
        data = training_data
        if training_data is not None:
            rows = self.check_batch_size(training_data.batch_size or 0)
            data = data_share(training_data, rows, self.get_rank(), self.get_world_size())
        model, optimizer, lr_scheduler = self._distribute(model, optimizer, lr_scheduler)
        return model, optimizer, data, lr_scheduler


def _pack(obj: Any) -> bytes:
    try:
        return pickle.dumps(("value", obj))
    except Exception as error:
        return pickle.dumps(("error", f"{type(error).__name__}: {error}"))
