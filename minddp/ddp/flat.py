"""Rung 2: one all-reduce for everything.

The latency is paid once. But the buffer is as large as the model, and nothing can be sent before
the last gradient is there.
"""

from minddp.buckets import group_by_kind
from minddp.ddp.base import BaseDDP


class FlatDDP(BaseDDP):
    """Packs all gradients into one flat buffer and averages them at once, after backward.

    One buffer for each dtype and device. Arguments and errors: see `BaseDDP`."""

    def _reduce(self) -> None:
        for params in group_by_kind(list(self._dense)):
            self._average(params)
