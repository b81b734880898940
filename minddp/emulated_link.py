"""A slow link on a fast machine: real ranks, real sums, and the time that a real wire would take.

Ranks on one machine talk through memory, where a call costs next to nothing and the bucket size
hardly matters. Holding each all-reduce for the time that the cost model gives it brings the
effects of a network back. Say so in every figure: the link is emulated.
"""

# No `from __future__ import annotations` here: torch compares the annotations of a hook.
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from minddp.cost_model import HierarchicalLink, Link, all_reduce_cost, require_count


class EmulatedLink:
    """A communication hook: averages the bucket, no sooner than a given link could have done it.

        ddp.register_comm_hook(None, EmulatedLink(latency_s=2e-3, bandwidth_Bps=2e8))

    The hook never blocks backward. One thread plays the wire: it holds one all-reduce at a time,
    in the order of the calls, so that buckets queue as they would on a network. The real
    all-reduce runs at once, beside it; if that takes longer than the emulated one, it decides.

    Args:
        latency_s: seconds per message.
        bandwidth_Bps: bytes per second.
        algorithm: as in :func:`minddp.cost_model.all_reduce_cost`.
        world_size: pretend to be so many ranks; the true number by default.

    Raises:
        ValueError: naming the argument that cannot be.
    """

    def __init__(
        self,
        latency_s: float,
        bandwidth_Bps: float,
        algorithm: str = "ring",
        world_size: int | None = None,
    ) -> None:
        self.link: Link | HierarchicalLink = Link(latency_s, bandwidth_Bps)
        self.algorithm = algorithm
        self.world_size = world_size
        if world_size is not None:
            require_count("world_size", world_size)
        self.seconds(0.0, world_size or 1)  # complain about a bad algorithm now
        self._wire: ThreadPoolExecutor | None = None
        # torch's DDP logs the name of its hook and expects to find it as on a function
        self.__name__ = self.__qualname__ = type(self).__name__

    def seconds(self, nbytes: float, world_size: int) -> float:
        """How long the all-reduce of ``nbytes`` bytes is held."""
        return all_reduce_cost(self.link, world_size, self.algorithm).seconds(nbytes)

    def __call__(
        self,
        state: Any,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stubs lack it
    ) -> torch.futures.Future[torch.Tensor]:
        """``state`` is the process group, or None for the default group."""
        buffer = bucket.buffer()
        ranks = dist.get_world_size(state)
        hold_s = self.seconds(buffer.numel() * buffer.element_size(), self.world_size or ranks)
        work = dist.all_reduce(buffer, group=state, async_op=True)
        averaged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if self._wire is None:
            self._wire = ThreadPoolExecutor(max_workers=1, thread_name_prefix="emulated link")
        self._wire.submit(_hold, work, buffer, ranks, hold_s, averaged)
        return averaged

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_wire": None}  # a thread stays where it is


def _hold(
    work: dist.Work,
    buffer: torch.Tensor,
    ranks: int,
    hold_s: float,
    averaged: "torch.futures.Future[torch.Tensor]",
) -> None:
    """Keep the wire busy for ``hold_s`` seconds and for as long as the real sum takes."""
    free_again = time.monotonic() + hold_s
    try:
        work.wait()
        buffer.div_(ranks)
        time.sleep(max(0.0, free_again - time.monotonic()))
    except Exception as error:  # it belongs to whoever waits for the result
        averaged.set_exception(error)  # type: ignore[arg-type]  # the stubs say Tensor
    else:
        averaged.set_result(buffer)
