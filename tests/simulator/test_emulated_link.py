"""An emulated link under real ranks: right averages, one wire, overlap, and a U-curve."""

import copy
import pickle
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minddp.cost_model import all_reduce_cost
from minddp.ddp.overlapped import OverlappedDDP
from minddp.emulated_link import EmulatedLink
from minddp.launcher import launch
from minddp.profiling import profile_step
from minddp.simulator import simulate


class Bucket:
    """As much of a gradient bucket as a hook needs."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def buffer(self) -> torch.Tensor:
        return self._buffer


def three_calls_at_once(link: EmulatedLink) -> tuple[list[torch.Tensor], bool, float, float]:
    start = time.monotonic()
    hold_s = link.seconds(400, dist.get_world_size())
    futures = [link(None, Bucket(torch.full((100,), dist.get_rank() + 1.0 + k))) for k in range(3)]
    launched_before_the_first_ended = time.monotonic() - start < hold_s or not futures[-1].done()
    means = [future.wait() for future in futures]
    return means, launched_before_the_first_ended, time.monotonic() - start, hold_s


def test_one_wire_and_the_mean() -> None:
    link = EmulatedLink(latency_s=0.05, bandwidth_Bps=1e6)
    for means, at_once, elapsed_s, hold_s in launch(three_calls_at_once, link, world_size=3):
        for k, mean in enumerate(means):
            assert torch.equal(mean, torch.full((100,), 2.0 + k))
        assert at_once, "a call blocked until the wire was free"
        assert elapsed_s >= 3 * hold_s, "the wire carried two buckets at a time"


def test_the_time_is_that_of_the_cost_model() -> None:
    link = EmulatedLink(1e-3, 1e6, algorithm="tree")
    assert link.seconds(5e5, 8) == all_reduce_cost(link.link, 8, "tree").seconds(5e5)
    with pytest.raises(ValueError, match="bandwidth_Bps must be > 0"):
        EmulatedLink(1e-3, 0)
    with pytest.raises(ValueError, match="algorithm must be one of"):
        EmulatedLink(1e-3, 1e6, algorithm="butterfly")
    with pytest.raises(ValueError, match="world_size must be a whole number"):
        EmulatedLink(1e-3, 1e6, world_size=0)


def failure_on_the_wire() -> str:
    link = EmulatedLink(0.0, 1e9)
    future = link(None, Bucket(torch.ones(4, dtype=torch.int64)))  # whole numbers have no mean
    with pytest.raises(RuntimeError) as caught:
        future.wait()
    link(None, Bucket(torch.ones(4))).wait()  # the wire still works
    pickle.loads(pickle.dumps(link))(None, Bucket(torch.ones(4))).wait()  # and travels
    return str(caught.value)


def test_an_error_reaches_whoever_waits() -> None:
    for message in launch(failure_on_the_wire, world_size=2):
        assert "can't be cast" in message


class SlowBackward(torch.autograd.Function):
    """The identity, with a backward pass that takes a known time and no core."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


class Layer(nn.Module):
    """256 KiB of weights and five small parameters; 15 ms of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(256)) for _ in range(4))

    def forward(self, x):
        x = self.linear(x)
        for scale in self.scales:
            x = x * scale
        return SlowBackward.apply(x, 0.015)


def slow_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(8)))


LATENCY_S, BANDWIDTH_BPS = 3e-3, 1.8e7  # the wire needs as long as backward
CAPS_MB = {"a bucket per parameter": 0.0, "between": 0.5, "one bucket": 100.0}


def seconds_by_cap(make_ddp: Callable[..., nn.Module]) -> dict[str, tuple[float, float]]:
    """Measured and simulated seconds of a step of a DDP class for each bucket size."""
    model, rows = slow_model(), torch.randn(2, 256)
    profile = profile_step(model, (rows, rows), loss_fn=nn.functional.mse_loss, steps=3)
    link = EmulatedLink(LATENCY_S, BANDWIDTH_BPS)
    seconds = {}
    for name, cap_mb in CAPS_MB.items():
        ddp = make_ddp(copy.deepcopy(model), bucket_cap_mb=cap_mb or 1e-6)
        ddp.register_comm_hook(None, link)
        _seconds_of_a_step(ddp, rows)  # in their first step both classes only watch
        measured = min(_seconds_of_a_step(ddp, rows) for _ in range(4))
        caps = {"bucket_cap_mb": cap_mb, "first_bucket_mb": cap_mb}
        simulated = simulate(profile, link.link, dist.get_world_size(), **caps)
        seconds[name] = (measured, simulated.duration)
    return seconds


def _seconds_of_a_step(ddp: nn.Module, rows: torch.Tensor) -> float:
    dist.barrier()
    start = time.monotonic()
    nn.functional.mse_loss(ddp(rows), rows).backward()
    return time.monotonic() - start


def ours(model: nn.Module, bucket_cap_mb: float) -> nn.Module:
    """With a first bucket like the others, which torch has too where a size is given."""
    return OverlappedDDP(model, bucket_cap_mb=bucket_cap_mb, first_bucket_mb=bucket_cap_mb)


@pytest.mark.parametrize("make_ddp", [DistributedDataParallel, ours])
def test_u_curve(make_ddp: Callable[..., nn.Module]) -> None:
    for seconds in launch(seconds_by_cap, make_ddp, world_size=2):
        tiny, best, huge = (seconds[name] for name in CAPS_MB)
        for k, how in enumerate(("measured", "simulated")):
            assert tiny[k] > 1.5 * best[k], f"{how}: small buckets pay no latency: {seconds}"
            assert huge[k] > 1.15 * best[k], f"{how}: one bucket hides nothing: {seconds}"
        for measured, simulated in seconds.values():
            assert simulated / 2 < measured < simulated * 2  # on a busy machine, too


def gradients(ddp_class: type[nn.Module], hook: EmulatedLink | None) -> list[torch.Tensor]:
    ddp = ddp_class(slow_model(), bucket_cap_mb=0.5)
    if hook:
        ddp.register_comm_hook(None, hook)
    for step in range(2):  # torch plans its buckets anew after the first
        ddp.zero_grad()
        rows = torch.randn(2, 256, generator=torch.Generator().manual_seed(step + dist.get_rank()))
        nn.functional.mse_loss(ddp(rows), rows).backward()
    return [parameter.grad for parameter in ddp.parameters()]


def test_gradients_are_those_of_ddp_without_the_hook() -> None:
    def all_three() -> list[list[torch.Tensor]]:
        plain = gradients(DistributedDataParallel, None)
        classes = (DistributedDataParallel, OverlappedDDP)
        return [plain, *(gradients(ddp_class, EmulatedLink(1e-4, 1e9)) for ddp_class in classes)]

    for plain, *with_hook in launch(all_three, world_size=2):
        for averaged in with_hook:
            for mine, theirs in zip(averaged, plain, strict=True):
                torch.testing.assert_close(mine, theirs)
