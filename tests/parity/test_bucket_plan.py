"""`plan_buckets(mode="threshold")` makes the buckets that torch's reducer makes.

Torch's planner can be called from Python under a private name. It takes tensors and limits in
bytes, where ours takes sizes, and it separates dtypes by itself, where we do it beforehand.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributed

from minddp.buckets import group_by_kind, plan_buckets


def torch_plan(tensors: list[Tensor], limits: list[int]) -> list[list[int]]:
    buckets, _ = distributed._compute_bucket_assignment_by_size(tensors, limits)
    return buckets


def our_plan(tensors: list[Tensor], limits: list[int]) -> list[list[int]]:
    """Plan each dtype by itself, then sort the buckets by their first tensor, as torch does."""
    place = {id(tensor): index for index, tensor in enumerate(tensors)}
    plan = []
    for group in group_by_kind(tensors):
        for bucket in plan_buckets([tensor.nbytes for tensor in group], limits, mode="threshold"):
            plan.append([place[id(group[slot])] for slot in bucket])
    return sorted(plan)


NUMELS = st.lists(st.integers(0, 40), min_size=1, max_size=20)
LIMITS = st.lists(st.integers(0, 400), min_size=1, max_size=4)
DTYPES = st.sampled_from([torch.float16, torch.float32, torch.float64])


@given(NUMELS, LIMITS)
def test_one_dtype(numels: list[int], limits: list[int]) -> None:
    tensors = [torch.empty(numel) for numel in numels]
    sizes = [tensor.nbytes for tensor in tensors]
    assert plan_buckets(sizes, limits, mode="threshold") == torch_plan(tensors, limits)


@given(st.lists(st.tuples(st.integers(0, 40), DTYPES), min_size=1, max_size=20), LIMITS)
def test_many_dtypes(kinds: list[tuple[int, torch.dtype]], limits: list[int]) -> None:
    tensors = [torch.empty(numel, dtype=dtype) for numel, dtype in kinds]
    assert our_plan(tensors, limits) == torch_plan(tensors, limits)


def test_the_limit_is_where_a_bucket_closes_not_what_it_may_hold() -> None:
    tensors = [torch.empty(numel) for numel in (10, 1000, 10)]
    assert torch_plan(tensors, [400]) == our_plan(tensors, [400]) == [[0, 1], [2]]
    # A true maximum would leave the large one alone.
    sizes = [tensor.nbytes for tensor in tensors]
    assert plan_buckets(sizes, 400, mode="max") == [[0], [1], [2]]


def test_the_first_limit_is_for_the_first_bucket_and_the_last_for_all_that_follow() -> None:
    tensors = [torch.empty(10) for _ in range(7)]
    expected = [[0], [1, 2], [3, 4], [5, 6]]
    assert torch_plan(tensors, [40, 80]) == our_plan(tensors, [40, 80]) == expected
