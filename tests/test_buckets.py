"""Bucket plans, flat buffers and their windows: pure functions, no processes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minddp.buckets import flatten, group_by_kind, plan_buckets, unflatten

SIZES = st.lists(st.integers(0, 50), max_size=30)
CAPACITIES = st.integers(0, 100) | st.lists(st.integers(0, 100), min_size=1, max_size=4)
MODES = st.sampled_from(["max", "threshold"])


def capacity_of(bucket: int, capacity: int | list[int]) -> int:
    if isinstance(capacity, int):
        return capacity
    return capacity[min(bucket, len(capacity) - 1)]


# ---------------------------------------------------------------------- plans


@given(SIZES, CAPACITIES, MODES)
def test_order_is_kept_nothing_is_lost_and_no_bucket_is_empty(sizes, capacity, mode):
    plan = plan_buckets(sizes, capacity, mode)
    assert [index for bucket in plan for index in bucket] == list(range(len(sizes)))
    assert all(plan)


@given(SIZES, CAPACITIES)
def test_max_never_exceeds_the_capacity_but_for_one_item_alone(sizes, capacity):
    for number, bucket in enumerate(plan_buckets(sizes, capacity, "max")):
        total = sum(sizes[index] for index in bucket)
        assert total <= capacity_of(number, capacity) or len(bucket) == 1


@given(SIZES, CAPACITIES)
def test_max_closes_a_bucket_only_where_the_next_item_has_no_room(sizes, capacity):
    plan = plan_buckets(sizes, capacity, "max")
    for number, (bucket, following) in enumerate(zip(plan, plan[1:], strict=False)):
        total = sum(sizes[index] for index in bucket)
        assert total + sizes[following[0]] > capacity_of(number, capacity)


@given(SIZES, CAPACITIES)
def test_threshold_closes_a_bucket_with_the_item_that_reaches_it(sizes, capacity):
    plan = plan_buckets(sizes, capacity, "threshold")
    for number, bucket in enumerate(plan):
        limit = capacity_of(number, capacity)
        assert sum(sizes[index] for index in bucket[:-1]) < limit or len(bucket) == 1
        if number < len(plan) - 1:
            assert sum(sizes[index] for index in bucket) >= limit


@given(st.lists(st.integers(1, 50), max_size=30), MODES)
def test_capacity_zero_gives_each_item_a_bucket_of_its_own(sizes, mode):
    assert plan_buckets(sizes, 0, mode) == [[index] for index in range(len(sizes))]


@given(SIZES, MODES)
def test_one_bucket_where_everything_has_room(sizes, mode):
    assert plan_buckets(sizes, sum(sizes) + 1, mode) == ([list(range(len(sizes)))] if sizes else [])


def test_the_two_modes_differ_by_the_item_that_does_not_fit():
    assert plan_buckets([2, 9, 3, 2, 4], 5, "max") == [[0], [1], [2, 3], [4]]
    assert plan_buckets([2, 9, 3, 2, 4], 5, "threshold") == [[0, 1], [2, 3], [4]]
    # An item that fills a bucket to the brim: "max" lets a size of 0 in, "threshold" has closed it.
    assert plan_buckets([5, 0], 5, "max") == [[0, 1]]
    assert plan_buckets([5, 0], 5, "threshold") == [[0], [1]]


def test_capacities_one_by_one_and_the_last_for_the_rest():
    assert plan_buckets([1] * 7, [1, 2, 3]) == [[0], [1, 2], [3, 4, 5], [6]]
    assert plan_buckets([1] * 7, [1, 2], "threshold") == [[0], [1, 2], [3, 4], [5, 6]]
    assert plan_buckets([0.5, 0.5, 0.25], (1, 0.25)) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 5, "min"), "mode must be 'max' or 'threshold', not 'min'"),
        (([1], -1), "capacity must be 0 or more, not -1"),
        (([1], float("nan")), "capacity must be 0 or more, not nan"),
        (([1], [5, -2]), "capacity must be 0 or more, not -2"),
        (([1], []), "capacity is an empty sequence"),
        (([1, 2, -3], 5), r"sizes\[2\] must be 0 or more, not -3"),
        (([float("nan")], 5), r"sizes\[0\] must be 0 or more, not nan"),
    ],
)
def test_what_cannot_be_planned(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_buckets(*arguments)


# ---------------------------------------------------------------------- groups


@given(st.lists(st.sampled_from([torch.float32, torch.float64, torch.int64]), max_size=12))
def test_groups_by_dtype_keep_the_order(dtypes):
    tensors = [torch.empty(place, dtype=dtype) for place, dtype in enumerate(dtypes)]
    groups = group_by_kind(tensors)
    assert [group[0].dtype for group in groups] == list(dict.fromkeys(dtypes))
    for group in groups:
        expected = [tensor for tensor in tensors if tensor.dtype == group[0].dtype]
        assert [id(tensor) for tensor in group] == [id(tensor) for tensor in expected]


def test_groups_by_device():
    tensors = [torch.empty(1), torch.empty(1, device="meta"), torch.empty(2)]
    groups = group_by_kind(tensors)
    assert [[tensor.device.type for tensor in group] for group in groups] == [
        ["cpu", "cpu"],
        ["meta"],
    ]


# ---------------------------------------------------------------------- flat buffers


@st.composite
def tensors_of_any_layout(draw: st.DrawFn) -> Tensor:
    """Dense in any order of dimensions, expanded, with holes, or empty."""
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    kind = draw(st.sampled_from(["dense", "holes", "expanded"]))
    numel = torch.Size(shape).numel()
    tensor = torch.arange(1.0, numel + 1).reshape(shape).permute(order)
    if kind == "holes":
        tensor = torch.stack([tensor, tensor + 100], dim=-1)[..., 0]
    if kind == "expanded":
        tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    return tensor


TENSORS = st.lists(tensors_of_any_layout(), min_size=1, max_size=5)


@given(TENSORS)
def test_round_trip_keeps_values_shapes_and_dense_strides(tensors):
    flat = flatten(tensors)
    assert flat.dim() == 1
    assert flat.numel() == sum(tensor.numel() for tensor in tensors)
    for window, tensor in zip(unflatten(flat, tensors), tensors, strict=True):
        assert torch.equal(window, tensor)
        assert window.dtype == tensor.dtype
        assert window.stride() == torch.empty_like(tensor).stride()
        if is_dense(tensor):
            assert window.stride() == tensor.stride()


def is_dense(tensor: Tensor) -> bool:
    """No holes and no overlaps: sorted by stride, each stride is the size of what lies within."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


@given(TENSORS)
def test_windows_share_the_buffer_and_cover_it_once(tensors):
    flat = torch.zeros(sum(tensor.numel() for tensor in tensors))
    for window in unflatten(flat, tensors):
        window.add_(1)
    assert torch.equal(flat, torch.ones_like(flat))


def test_a_transposed_tensor_lies_in_the_buffer_as_in_its_own_memory():
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).t()
    assert flatten([tensor]).tolist() == [1, 2, 3, 4, 5, 6]
    assert unflatten(torch.arange(6.0), [tensor])[0].tolist() == [[0, 2, 4], [1, 3, 5]]


def test_flatten_into_a_longer_buffer_writes_and_returns_its_head():
    memory = torch.full((5,), 7.0)
    head = flatten([torch.zeros(1), torch.zeros(1, 2)], out=memory)
    assert head.shape == (3,)
    assert head.data_ptr() == memory.data_ptr()
    assert memory.tolist() == [0, 0, 0, 7, 7]


def test_a_buffer_that_is_itself_a_window():
    memory = torch.arange(10.0)
    windows = unflatten(memory[4:], [torch.empty(2), torch.empty(())])
    assert [window.tolist() for window in windows] == [[4, 5], 6]


@pytest.mark.parametrize("buffer", [torch.empty(2), torch.empty(3, 1), torch.empty(())])
def test_a_buffer_that_is_too_small_or_not_flat(buffer):
    with pytest.raises(ValueError, match="1-D buffer of at least 3 elements, got shape"):
        unflatten(buffer, [torch.empty(3)])
    with pytest.raises(ValueError, match="1-D buffer of at least 3 elements, got shape"):
        flatten([torch.empty(3)], out=buffer)


def test_a_buffer_with_gaps_is_refused():
    every_other = torch.arange(8.0)[::2]
    with pytest.raises(ValueError, match=r"need a contiguous 1-D buffer .* strides \(2,\)"):
        unflatten(every_other, [torch.empty(2), torch.empty(2)])


def test_half_precision_and_integers_keep_their_dtype():
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        tensor = torch.ones(2, 2, dtype=dtype)
        flat = flatten([tensor, tensor])
        assert flat.dtype == dtype
        assert torch.equal(unflatten(flat, [tensor])[0], tensor)
