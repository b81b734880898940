"""In which dtype is an average computed, and in which does it come back?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_summable(value: Any) -> Tensor:
    """A copy of a tensor or number, without graph, contiguous, in a dtype whose sum is safe.

    The sum of two float16 values of 40000 is infinite in float16, and integers would overflow or
    be cut off, so both are summed in a wider float.

    Raises TypeError for what has no average.
    """
    if isinstance(value, (bool, int, float)):
        value = torch.tensor(value)
    if not isinstance(value, Tensor) or value.is_sparse:
        raise TypeError(f"average_all takes a dense tensor or a number, not {value!r}")
    if not (value.is_floating_point() or value.is_complex()):
        dtype = torch.float64
    elif value.dtype.itemsize < 4:
        dtype = torch.float32
    else:
        dtype = value.dtype
    return value.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


def like_input(average: Tensor, value: Any) -> Tensor:
    """The average in the float dtype, and on the device, of the value that was given."""
    if not isinstance(value, Tensor):
        return average.to("cpu", torch.get_default_dtype())
    has_fractions = value.is_floating_point() or value.is_complex()
    return average.to(value.device, value.dtype if has_fractions else torch.get_default_dtype())
