"""Rung 1: one all-reduce per parameter.

Right, and slow: each all-reduce pays the latency of a message, and a model has hundreds of small
parameters.
"""

from minddp.ddp.base import BaseDDP


class NaiveDDP(BaseDDP):
    """Averages the gradient of each parameter with an all-reduce of its own, after backward.

    Arguments and errors: see `BaseDDP`."""

    def _reduce(self) -> None:
        for param in self._dense:
            self._average([param])
