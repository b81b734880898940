"""What every rung of the ladder shares: everything but the averaging itself.

wrap        same model on every rank? then the same weights           (replica.py)
forward     look for changes since wrapping, bring the buffers in line, run the model
backward    notice when it has ended                                  (watcher.py)
average     the rung's own `_reduce`, in buckets                      (bucket.py)
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from minddp.ddp import checks
from minddp.ddp.bucket import Bucket
from minddp.ddp.buffers import BUFFER_MODES, average_buffers
from minddp.ddp.join import Join, joining
from minddp.ddp.sparse import average_sparse
from minddp.ddp.torch_names import TorchNames
from minddp.ddp.watcher import BackwardWatcher

_counter = itertools.count(1)  # wrapped models, in the order of wrapping


class BaseDDP(TorchNames, BackwardWatcher):
    """A module whose gradients are averaged over the ranks when ``loss.backward()`` returns.

    A drop-in for `torch.nn.parallel.DistributedDataParallel`. After backward every rank holds

        grad = (1 / N) * sum over ranks of that rank's gradient

    for each parameter that some rank used; one that no rank used keeps the gradient it had (None
    stays None). It holds whatever came before: accumulation, several backwards, re-entrant
    checkpointing, calls of sub-modules. Averaging what is already the average changes nothing.

    Args:
        module: the model, the same on every rank. Its Parameter objects are kept, so an optimizer
            built before wrapping still works.
        process_group: the ranks to average over; the default group if None.
        device_ids, output_device: as in torch: None on CPU, or the one device of the model.
        init_sync: copy the first rank's parameters and buffers to all.
        buffers: what happens to buffers such as BatchNorm's statistics. ``"broadcast"``: the first
            rank's are copied to all before each training forward, as torch does. ``"average"``:
            averaged after each backward (integers are copied). ``"off"``: left alone.
        broadcast_buffers, forward_sync_buffers: torch's old and new name for ``"broadcast"`` (True)
            and ``"off"`` (False); the new one wins.
        device_mesh: a 1-D `DeviceMesh` whose group to use, in place of `process_group`.
        find_unused_parameters, static_graph: accepted and not needed: an unused parameter is no
            special case here.
        error_on_unused: raise after a backward in which some rank left a parameter out.
        debug: compare size and names between ranks before each all-reduce, and raise on all ranks
            where they differ. Slow. Default: whether MINDDP_DEBUG is set.

    Raises:
        RuntimeError: no process group, nothing to train, parameters without a shape, a model that
            differs between ranks.
        TypeError, ValueError: an argument that cannot be used.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        *,
        device_ids: list[Any] | None = None,
        output_device: Any = None,
        init_sync: bool = True,
        buffers: str = "broadcast",
        broadcast_buffers: bool | None = None,
        forward_sync_buffers: bool | None = None,
        device_mesh: Any = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        error_on_unused: bool = False,
        debug: bool | None = None,
    ) -> None:
        super().__init__()
        checks.require_module(module, device_ids)
        for torch_says in (broadcast_buffers, forward_sync_buffers):
            if torch_says is not None:
                buffers = "broadcast" if torch_says else "off"
        if buffers not in BUFFER_MODES:
            raise ValueError(f"buffers must be one of {BUFFER_MODES}, not {buffers!r}")
        self.buffers_mode = buffers
        self.forward_sync_buffers = buffers == "broadcast"
        self.device_mesh = device_mesh
        self.error_on_unused = error_on_unused
        self.debug = (
            os.environ.get("MINDDP_DEBUG", "0") not in ("", "0") if debug is None else debug
        )
        self.step = 0  # averagings so far
        self._connect(module, checks.require_group(process_group, device_mesh))
        if init_sync:
            self._copy_from(source=0)

    def _connect(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super()._connect(module, group)
        self.divisor = float(self.world_size)
        self._number = next(_counter)
        self._join: Join | None = None
        self._silent = False  # take part in collectives without gradients of one's own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward. Communicates only in training: never in ``eval()``, nor under
        ``no_grad``, nor where a checkpoint runs a forward again inside backward."""
        with_graph = torch.is_grad_enabled()
        if with_graph and torch._C._current_graph_task_id() == -1:
            self._forward_was_synced = self.require_backward_grad_sync
            if self.module.training:  # the model's own flag: it may be reached without us
                self._refuse_new_parameters()
                self._announce("forward" if self.require_backward_grad_sync else "local")
                if self.require_backward_grad_sync:
                    self._synchronise_buffers()
        output = self.module(*args, **kwargs)
        if with_graph:
            self._watch_outputs(output)
        return output

    def _synchronise_buffers(self) -> None:
        if self.buffers_mode == "broadcast":
            buffers = list(self._buffers_by_name().values())
            source = self._join.source if self._join else 0
            checks.broadcast_tensors(buffers, self.process_group, source)

    def _backward_begins(self) -> None:
        if self._wiring.kinds_changed():  # frozen, unfrozen, cast or moved since wrapping
            self._scan()
        self._start_over()
        self._announce("reduce")
        self.step += 1
        self._versions = [param._version for param in self._handles]

    def _backward_has_ended(self) -> None:
        self._average_everything()
        checks.require_untouched(self._handles, self._versions, self._dense)

    def _start_over(self) -> None:
        """Forget what a backward that failed half-way may have left behind."""

    def reduce_gradients(self) -> None:
        """Average the gradients now. Backward does it by itself; call this after a backward under
        `no_sync`, or where gradients were written by hand. Every rank must call it."""
        self._backward_begins()
        self._average_everything()

    @torch.no_grad()
    def _average_everything(self, silent: bool = False) -> None:
        self._silent = silent
        try:
            self._reduce()
            if self._sparse:
                average_sparse(list(self._sparse), self.process_group, self.divisor, silent)
            if self.buffers_mode == "average":
                working = self._join.working if self._join else self.world_size
                average_buffers(self._buffers_by_name(), self.process_group, working, silent)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank}: averaging the gradients of step {self.step} failed: "
                f"{str(error).rstrip('.')}. (If a peer died, its own error tells more. If it is at "
                "another step: with unequal numbers of batches train inside `model.join()`.)"
            ) from error
        finally:
            self._silent = False
        self._local = False
        if self.error_on_unused:
            used, self._used = () if silent else self._used, set()
            working = self._join.working if self._join else self.world_size
            names = self._dense | self._sparse
            checks.require_all_used(names, used, self.process_group, working)

    def _reduce(self) -> None:
        """Average the gradients of all dense parameters. This is what a rung is about."""
        raise NotImplementedError

    def _average(self, parameters: Iterable[Parameter], memory: Tensor | None = None) -> None:
        """Average the gradients of some parameters with one all-reduce: flatten, sum, unflatten."""
        named = {param: self._dense[param] for param in parameters}
        bucket = Bucket(named, self.process_group, memory=memory)
        if self._silent:
            bucket.pack_nothing()
        else:
            bucket.pack(self.divisor)
        self._launch(bucket)
        self._finish(bucket)

    def _launch(self, bucket: Bucket) -> None:
        if self.debug:
            bucket.settle_previous()  # the comparison is a collective too
            checks.require_same_bucket(bucket, self._number, self.step)
        bucket.start(self.divisor)

    def _finish(self, bucket: Bucket) -> None:
        if self._silent:
            bucket.wait()
            return
        bucket.finish()

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> AbstractContextManager[None]:
        """Train with unequal numbers of batches. See `minddp.ddp.join.joining`."""
        return joining(self, divide_by_initial_world_size, enable, throw_on_early_termination)

    def _announce(self, what: str) -> None:
        if self._join is not None:
            self._join.announce(what)
