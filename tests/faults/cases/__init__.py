"""All cases, in the order of their records."""

from ..record import CASES
from . import (
    accumulate,
    buffers,
    compiled,
    graphs,
    losses,
    mismatch,
    outputs,
    parameters,
    steps,
    training,
    unused,
    wrapping,
)

CASES.sort(key=lambda case: case.record)

__all__ = [
    "CASES",
    "accumulate",
    "buffers",
    "compiled",
    "graphs",
    "losses",
    "mismatch",
    "outputs",
    "parameters",
    "steps",
    "training",
    "unused",
    "wrapping",
]
