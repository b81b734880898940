"""Every way to call a collective is recorded under one name, with its size, ranks and end."""

import time
import warnings

import pytest
import torch
import torch.distributed as dist

from minddp.launcher import launch
from minddp.recorder import record

CLOCK = 1e-3  # seconds that two clocks, read one after the other, may differ


def call_everything() -> list[str]:
    """One call of each, in this order; returns what must be recorded, as text."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    t, double = torch.ones(4), torch.ones(8)
    dist.all_reduce(t)
    dist.all_reduce(t.to(torch.float64), async_op=True).wait()
    dist.broadcast(t, src=1)
    dist.reduce(t, dst=1)
    dist.all_gather([torch.ones(4), torch.ones(4)], t)
    dist.all_gather_into_tensor(double, t)
    dist.reduce_scatter(t, [torch.ones(4), torch.ones(4)])
    dist.reduce_scatter_tensor(t, double)
    dist.all_to_all_single(torch.ones(4), t)
    dist.gather(t, [torch.ones(4), torch.ones(4)] if rank == 0 else None, dst=0)
    dist.scatter(t, [torch.ones(4), torch.ones(4)] if rank == 0 else None, src=0)
    dist.all_reduce_coalesced([torch.ones(3), torch.ones(2, 2)])
    dist.barrier()
    dist.monitored_barrier()
    for work in [dist.isend(t, peer), dist.irecv(torch.ones(4), peer)]:
        work.wait()
    if rank == 0:
        dist.send(torch.ones(2, dtype=torch.int64), 1)
    else:
        dist.recv(torch.ones(2, dtype=torch.int64))
    four, eight = "4 float32 (16 B)", "8 float32 (32 B)"
    return [
        f"all_reduce #0: {four}",
        "all_reduce #1: 4 float64 (32 B)",
        f"broadcast #2 root 1: {four}",
        f"reduce #3 root 1: {four}",
        f"all_gather #4: {four}",
        f"all_gather #5: {four}",
        f"reduce_scatter #6: {eight}",
        f"reduce_scatter #7: {eight}",
        f"all_to_all #8: {four}",
        f"gather #9 root 0: {four}",
        f"scatter #10 root 0: {four}",
        "all_reduce #11: 7 float32 (28 B)",
        "barrier #12",
        "barrier #13",
        f"send #14 to {peer}: {four}",
        f"recv #15 from {peer}: {four}",
        "send #16 to 1: 2 int64 (16 B)" if rank == 0 else "recv #16: 2 int64 (16 B)",
    ]


def record_everything(times: str) -> tuple:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # old names of two collectives
        with record(times=times) as recording:
            begun = time.monotonic()
            expected = call_everything()
            done = time.monotonic()
    return recording, expected, begun, done


@pytest.mark.parametrize("times", ["dispatch", "profiler"])
def test_every_variant_is_recorded(times: str) -> None:
    results = launch(record_everything, times, timeout=60)
    for rank, (recording, expected, begun, done) in enumerate(results):
        assert [str(event) for event in recording.events] == expected
        assert (recording.rank, recording.world_size) == (rank, 2)
        for seq, event in enumerate(recording.events):
            assert (event.seq, event.rank, event.group) == (seq, rank, (0, 1))
            assert event.end is not None
            assert begun - CLOCK <= event.start <= event.end <= done + CLOCK
        assert recording.events[11].shapes == ((3,), (2, 2))


def groups_of_two() -> tuple:
    """Ranks 1 and 2 form a group of their own; its rank 0 is global rank 1."""
    group = dist.new_group([1, 2])
    with record() as recording:
        if dist.get_rank() in (1, 2):
            dist.broadcast(torch.ones(3), src=1, group=group)
            dist.all_reduce(torch.ones(3), group=group)
        dist.all_reduce(torch.ones(1))
    return [(e.op, e.group, e.peer) for e in recording.events]


def test_groups_are_named_by_global_ranks() -> None:
    outside, *members = launch(groups_of_two, world_size=3, timeout=60)
    assert outside == [("all_reduce", (0, 1, 2), None)]
    for member in members:
        assert member == [
            ("broadcast", (1, 2), 1),
            ("all_reduce", (1, 2), None),
            ("all_reduce", (0, 1, 2), None),
        ]


def late_receiver() -> tuple:
    """Rank 1 receives only when rank 0 has told it, over a store, that its send began."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(2**20)  # too large for a socket's buffer
    with record() as recording:
        if dist.get_rank() == 0:
            work = dist.isend(tensor, 1)
            before_wait = recording.events[0].end
            store.set("sent", "yes")
            work.wait()
        else:
            store.wait(["sent"])
            before_wait = None
            dist.recv(tensor, 0)
    return recording.events[0], before_wait


def test_send_and_recv_end_when_their_wait_returns() -> None:
    (sent, before_wait), (received, _) = launch(late_receiver, timeout=60)
    assert before_wait is None
    assert sent.start <= received.start < sent.end
    # One clock for both: the receiver began after the sender and neither ended before both began.
    assert received.end > received.start > sent.start


def functional() -> list:
    import torch.distributed._functional_collectives as functional_collectives

    with record() as recording:
        result = functional_collectives.all_reduce(torch.ones(5), "sum", dist.group.WORLD)
        total = float(result.sum())
    return [(e.op, e.numel, e.group) for e in recording.events], total


def test_functional_collectives_are_seen() -> None:
    for events, total in launch(functional, timeout=60):
        assert events == [("all_reduce", 5, (0, 1))]
        assert total == 10.0
