"""The table of calls marks where ranks part."""

import torch
import torch.distributed as dist

from minddp import lab
from minddp.launcher import launch
from minddp.recording import Collective, Recording


def call(seq: int, op: str, numel: int, rank: int, group=(0, 1), peer=None) -> Collective:
    return Collective(
        op, numel, torch.float32, 4 * numel, seq, rank, 0.0, 1.0, "outside", group, peer
    )


def test_the_first_difference_is_marked() -> None:
    same = [call(0, "broadcast", 5, 0, peer=0), call(1, "all_reduce", 5, 0)]
    log = lab.call_log(
        [
            Recording(0, 2, [*same, call(2, "all_reduce", 6, 0), call(3, "barrier", 0, 0)]),
            Recording(1, 2, [*same, call(2, "all_reduce", 8, 1)]),
        ]
    )
    head, *rows = log.splitlines()
    assert head.split() == ["#", "rank", "0", "rank", "1"]
    assert [row.endswith("<- differs") for row in rows] == [False, False, True, True]
    expected = "2 all_reduce 6 float32 (24 B) all_reduce 8 float32 (32 B) <- differs"
    assert " ".join(rows[2].split()) == expected
    assert " - " in rows[3]
    assert len({row.rindex("<-") for row in rows[2:]}) == 1
    assert {row.index("broadcast" if "broad" in row else "all_reduce") for row in rows[:3]} == {3}


def test_groups_and_messages_may_differ() -> None:
    groups = [Recording(r, 4, [call(0, "all_reduce", 3 + r, r, group=(r, r + 2))]) for r in (0, 1)]
    assert "differs" not in lab.call_log(groups)
    messages = [
        Recording(0, 2, [call(0, "send", 3, 0, peer=1)]),
        Recording(1, 2, [call(0, "recv", 3, 1, peer=0)]),
    ]
    assert "differs" not in lab.call_log(messages)


def reduce_twice() -> None:
    for numel in (3, 4):
        dist.all_reduce(torch.ones(numel))


def test_recordings_of_a_launch() -> None:
    results = launch(reduce_twice, record=True, timeout=60)
    rows = lab.call_log(results.recordings).splitlines()[1:]
    assert [row.count("all_reduce") for row in rows] == [2, 2]
    assert "differs" not in "".join(rows)
