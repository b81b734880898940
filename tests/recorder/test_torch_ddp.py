"""torch's own DDP calls its collectives from C++; they are recorded all the same."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from minddp.launcher import launch
from minddp.recorder import record
from minddp.recording import Recording


def model_of(layers: int = 6, width: int = 64) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])


def train(times: str, steps: int = 2, bucket_cap_mb: float = 0.01, hook=None) -> tuple:
    """Returns a recording of each step, and the sizes of the parameters."""
    torch.set_num_threads(1)
    model = model_of()
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    recordings = []
    for _ in range(steps):
        with record(times=times) as recording:
            ddp(torch.randn(8, 64)).sum().backward()
            optimizer.step()
        recordings.append(recording)
    return recordings, sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("times", ["dispatch", "profiler"])
def test_gradients_are_reduced_once_in_backward(times: str) -> None:
    results = launch(train, times, 3, timeout=60)
    for recordings, parameters in results:
        for recording in recordings:
            reductions = recording.collectives("all_reduce")
            assert sum(event.numel for event in reductions) == parameters
            assert all(event.in_backward for event in reductions)
            assert all(event.end is not None for event in reductions)
        # The first step uses the buckets made before the order of gradients was known.
        assert [len(recording.collectives("all_reduce")) for recording in recordings[1:]] == [6, 6]
        assert recordings[1].collectives("all_reduce")[0].numel == 64 * 64 + 64
    first, second = (recordings[2] for recordings, _ in results)
    assert [(e.op, e.numel) for e in first.events] == [(e.op, e.numel) for e in second.events]


def test_communication_hooks() -> None:
    for recordings, parameters in launch(train, "dispatch", 2, hook=fp16_compress_hook, timeout=60):
        reductions = recordings[1].collectives("all_reduce", phase="backward")
        assert len(reductions) == 6
        assert {event.dtype for event in reductions} == {torch.float16}
        assert sum(event.nbytes for event in reductions) == 2 * parameters


def buffers() -> list[str]:
    ddp = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    )
    with record() as recording:
        ddp(torch.randn(3, 4)).sum().backward()
    return [(event.op, event.phase) for event in recording.events]


def test_buffers_are_broadcast_in_forward() -> None:
    for events in launch(buffers, timeout=60):
        assert ("broadcast", "forward") in events
        assert events[-1] == ("all_reduce", "backward")


def blocking_step() -> Recording:
    """All gradients are there before the first all-reduce, and every one is waited for."""
    torch.set_num_threads(1)
    model = model_of()
    with record() as recording:
        model(torch.randn(8, 64)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    return recording


def test_compute_lane() -> None:
    (recordings, _), _ = launch(train, "dispatch", 2, timeout=60)
    for span in recordings[1].spans:
        assert (span.rank, span.lane) == (0, "compute")
    kinds = [span.kind for span in recordings[1].spans if span.kind != "other"]
    assert kinds == sorted(kinds, key=["forward", "backward", "optimizer"].index)
    assert set(kinds) == {"forward", "backward", "optimizer"}
    backward = [span for span in recordings[1].spans if span.kind == "backward"]
    launched = [event.start for event in recordings[1].collectives("all_reduce")]
    assert backward[0].start < launched[0] < launched[-1] < backward[-1].end


def test_a_blocked_thread_is_not_computing() -> None:
    for recording in launch(blocking_step, timeout=60):
        timeline = recording.timeline()
        assert recording.count == 12
        # Nothing ran while the thread waited: what was communicated was exposed.
        assert timeline.overlap_fraction(recording.rank) < 0.05
