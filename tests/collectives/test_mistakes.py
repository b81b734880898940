"""A wrong call is refused with a sentence, before a rank waits for another."""

import pytest
import torch
import torch.distributed as dist

from minddp import collectives
from minddp.launcher import launch


def messages_of_wrong_calls() -> dict[str, str]:
    only_0 = dist.new_group([0])
    calls = {
        "op": lambda: collectives.ring_all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        "root": lambda: collectives.tree_broadcast(torch.ones(2), src=2),
        "count": lambda: collectives.all_gather([torch.ones(2)], torch.ones(2)),
        "shape": lambda: collectives.all_gather([torch.ones(2)] * 2, torch.ones(3)),
        "dtype": lambda: collectives.reduce_scatter(torch.ones(2).int(), [torch.ones(2)] * 2),
    }
    if dist.get_rank() == 1:
        calls["member"] = lambda: collectives.ring_all_reduce(torch.ones(2), group=only_0)
    said = {}
    for name, call in calls.items():
        with pytest.raises(ValueError) as caught:
            call()
        said[name] = str(caught.value)
    return said


def test_wrong_calls() -> None:
    rank_0, rank_1 = launch(messages_of_wrong_calls, world_size=2)
    for said in (rank_0, rank_1):
        assert "SUM, PRODUCT, MIN or MAX" in said["op"]
        assert "[0, 1], got 2" in said["root"]
        assert "tensor_list must have one tensor for each of the 2 ranks, got 1" in said["count"]
        assert "(3,) torch.float32 and (2,) torch.float32" in said["shape"]
        assert "output and input_list" in said["dtype"] and "torch.int32" in said["dtype"]
    assert "rank 1 called a collective of a group that it is not a member of" in rank_1["member"]


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match=r"no process group.*minddp\.launch"):
        collectives.ring_all_reduce(torch.ones(2))
