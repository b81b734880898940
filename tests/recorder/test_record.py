"""The block itself: nesting, exceptions, one rank only, no process group, pickling."""

import os
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from minddp.launcher import launch
from minddp.recorder import record


def reduce_ones(numel: int) -> None:
    dist.all_reduce(torch.ones(numel))


def nested() -> tuple:
    with record() as outer:
        reduce_ones(1)
        with record() as inner:
            reduce_ones(2)
            dist.send(torch.ones(5), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(5), 0)
        reduce_ones(3)
    reduce_ones(4)
    ends = [event.end is not None for event in outer.events + inner.events]
    return [e.numel for e in outer.events], [e.numel for e in inner.events], all(ends)


def test_blocks_nest() -> None:
    assert launch(nested, timeout=60) == [([1, 2, 5, 3], [2, 5], True)] * 2


def interrupted(times: str) -> tuple:
    wait = distributed_c10d.Work.wait
    recording = None
    try:
        with record(times=times) as recording:
            torch.ones(3) @ torch.ones(3)
            reduce_ones(1)
            raise KeyError("mine")
    except KeyError as error:
        raised = str(error)
    reduce_ones(2)
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    clean = distributed_c10d.Work.wait is wait and not hooks
    return (
        raised,
        [(e.numel, e.end is not None) for e in recording.events],
        len(recording.spans),
        clean,
    )


@pytest.mark.parametrize("times", ["dispatch", "profiler"])
def test_an_exception_keeps_what_was_recorded(times: str) -> None:
    for raised, events, spans, clean in launch(interrupted, times, timeout=60):
        assert raised == "'mine'"
        assert events == [(1, True)]
        assert spans >= 1
        assert clean, "the recorder left a hook or a listener behind"


def only_rank_0() -> list[int] | None:
    if dist.get_rank() == 0:
        with record() as recording:
            reduce_ones(1)
        return [event.numel for event in recording.events]
    reduce_ones(1)
    return None


def test_one_rank_may_record_alone() -> None:
    assert launch(only_rank_0, timeout=60) == [[1], None]


def test_without_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model = torch.nn.Linear(3, 3)
    with record() as recording:
        model(torch.ones(2, 3)).sum().backward()
    assert (recording.rank, recording.world_size, recording.count) == (0, 1, 0)
    assert [span.kind for span in recording.spans if span.kind != "other"] == [
        "forward",
        "backward",
    ]
    assert repr(recording) == "<Recording of rank 0 of 1: no collectives, 0 B>"
    assert pickle.loads(pickle.dumps(recording)) == recording


def test_unknown_times() -> None:
    expected = pytest.raises(
        ValueError, match='times is \'wall\'; expected "dispatch" or "profiler"'
    )
    with expected, record(times="wall"):  # type: ignore[arg-type]
        pass


def test_a_second_profiler_is_refused() -> None:
    refused = pytest.raises(RuntimeError, match="already running")
    with torch.autograd.profiler.profile(), refused, record(times="profiler"):
        pass


def profiled() -> bool:
    before = dict(os.environ)
    with record(times="profiler"):
        torch.ones(3).sum()
    return dict(os.environ) == before


def test_the_profiler_logs_nothing() -> None:
    results = launch(profiled, prints="off", timeout=60)
    assert results == [True, True]
    assert results.outputs == ["", ""]


def unwaited() -> tuple:
    with record() as recording:
        work = dist.isend(torch.ones(2), 1) if dist.get_rank() == 0 else None
    end = [event.end for event in recording.events]
    if dist.get_rank() == 1:
        dist.recv(torch.ones(2), 0)
    else:
        work.wait()
    return end, len(recording.timeline())


def test_an_end_that_nobody_saw_is_none() -> None:
    (ends, drawn), _ = launch(unwaited, timeout=60)
    assert ends == [None]
    assert drawn <= 1  # the compute span that made the tensor; no bar for the send


def table() -> tuple[str, str]:
    with record() as recording:
        dist.all_reduce(torch.ones(4096))
        dist.broadcast(torch.ones(2, dtype=torch.int64), src=0)
        dist.barrier()
    return recording.table(), repr(recording), recording.nbytes, recording.numel


def test_table_and_repr() -> None:
    text, line, nbytes, numel = launch(table, timeout=60)[1]
    title, head, *rows = text.splitlines()
    assert title == "rank 1 of 2"
    assert head.split("  ")[0].strip() == "#"
    assert [row.split()[:4] for row in rows] == [
        ["0", "all_reduce", "4096", "float32"],
        ["1", "broadcast", "(0)", "2"],
        ["2", "barrier", "0", "-"],
    ]
    assert len({row.rindex(".") for row in [*rows]}) == 1, "the last column is aligned"
    assert line == "<Recording of rank 1 of 2: 1 all_reduce, 1 broadcast, 1 barrier, 16.0 KiB>"
    assert (nbytes, numel) == (4096 * 4 + 16, 4098)
