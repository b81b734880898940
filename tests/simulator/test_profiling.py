"""profile_step measures what the model does, and leaves the model alone."""

import time

import pytest
import torch
from torch import nn

from minddp.cost_model import Link
from minddp.profiling import profile_step
from minddp.simulator import simulate


class SlowBackward(torch.autograd.Function):
    """The identity, with a backward pass that takes a known time."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(5))

    def forward(self, x):
        x = SlowBackward.apply(self.frozen(self.first(x)), 0.02)
        return SlowBackward.apply(self.last(self.norm(x)), 0.02)


BATCH = (torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))


def test_readiness_follows_the_backward_pass() -> None:
    model = Slow()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    profile = profile_step(model, BATCH, optimizer_fn=lambda ps: torch.optim.SGD(ps, lr=1.0))

    names = ["unused", "first.weight", "first.bias", "norm.weight", "norm.bias"]
    assert list(profile.param_names) == [*names, "last.weight", "last.bias"]
    assert list(profile.param_bytes) == [20, 128, 32, 32, 32, 96, 12]
    ready = dict(zip(profile.param_names, profile.ready_s, strict=True))
    assert 0.02 <= ready["last.weight"] <= ready["norm.weight"]
    assert ready["norm.weight"] + 0.02 <= ready["first.weight"]
    assert ready["unused"] == profile.backward_seconds >= 0.04
    assert profile.forward_s > 0 and profile.optimizer_s > 0

    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.first.weight._post_accumulate_grad_hooks


def test_a_measured_profile_can_be_simulated() -> None:
    sequences = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    tokens = torch.randint(0, 7, (2, 5))
    profile = profile_step(sequences, (tokens, tokens), steps=1, name="tiny")
    assert profile.optimizer_s == 0.0
    timeline = simulate(profile, Link(1e-3, 1e9), 2)
    assert timeline.duration > profile.compute_s
    assert timeline.title.startswith("tiny")


class Sometimes(nn.Module):
    """Uses its second layer in the first step only, which is the one that warms up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.first(x) + (self.second(x) if self.calls == 1 else 0)


def test_a_parameter_that_is_used_sometimes_counts_for_each_step() -> None:
    profile = profile_step(Sometimes(), BATCH, steps=1)
    assert profile.ready_s[2] == profile.ready_s[3] == profile.backward_seconds
    assert profile.ready_s[0] < profile.backward_seconds


def test_own_loss() -> None:
    seen = []

    def loss(outputs, targets):
        seen.append(targets)
        return (outputs - targets).square().mean()

    profile_step(nn.Linear(4, 2), (torch.ones(3, 4), torch.ones(3, 2)), loss_fn=loss, steps=2)
    assert len(seen) == 3


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="steps must be a whole number >= 1, got 0"):
        profile_step(nn.Linear(4, 3), BATCH, steps=0)
    with pytest.raises(ValueError, match="at least one parameter with requires_grad"):
        profile_step(nn.Linear(4, 3).requires_grad_(False), BATCH)
