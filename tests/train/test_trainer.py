"""The two handles, and what a step communicates."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from minddp.launcher import launch
from minddp.recorder import record
from minddp.text import held_out_starts
from minddp.trainer import Trainer
from tests.train.small import small


def test_one_process_without_a_group_has_one_handle():
    trainer = Trainer(small())
    assert trainer.ddp_model is trainer.model
    assert (trainer.rank, trainer.world_size) == (0, 1)


def test_held_out_loss_is_the_mean_over_the_held_out_windows():
    trainer = Trainer(small())
    held_out, length = trainer.text.held_out, 16
    starts = held_out_starts(len(held_out), rows=13, length=length)
    losses = []
    for start in starts:
        inputs, targets = held_out[start : start + length], held_out[start + 1 : start + length + 1]
        losses.append(F.cross_entropy(trainer.model(inputs[None])[0], targets).item())
    assert len(losses) == 13
    assert trainer.evaluate() == pytest.approx(sum(losses) / 13, abs=1e-5)
    assert trainer.held_out_losses == {0: trainer.evaluate()}


def two_handles() -> dict[str, object]:
    trainer = Trainer(small(steps=2))
    shared = zip(trainer.model.parameters(), trainer.ddp_model.parameters(), strict=True)
    optimized = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    facts = {
        "one model": trainer.ddp_model.module is trainer.model,
        "wrapped": trainer.ddp_model is not trainer.model,
        "same parameters": all(a is b for a, b in shared),
        "optimizer": optimized == {id(p) for p in trainer.model.parameters()},
        "no prefix": not any(name.startswith("module.") for name in trainer.model.state_dict()),
    }
    trainer.ddp_model.eval()
    facts["eval reaches the model"] = not trainer.model.training
    calls = []
    trainer.ddp_model.register_forward_pre_hook(lambda *_: calls.append(trainer.model.training))
    trainer.fit()
    # Two steps in training mode and one evaluation, all through ddp_model; then training again.
    facts["calls go through ddp_model"] = calls == [True, True, False]
    facts["back in training mode"] = trainer.model.training and trainer.ddp_model.training
    return facts


def test_two_handles_hold_one_model():
    for facts in launch(two_handles, prints="off"):
        assert [name for name, holds in facts.items() if not holds] == []


def gradients() -> tuple[list[torch.Tensor], list[str], list[str]]:
    """The gradients of the first step, the collectives of two steps, and those of sharing."""
    trainer = Trainer(small(ddp_backend="naive", clip=1e9))
    trainer.optimizer.zero_grad = lambda: None  # keep them, to look at
    trainer.train_step()
    grads = [p.grad.clone() for p in trainer.model.parameters()]
    trainer.optimizer.zero_grad = lambda: trainer.model.zero_grad()
    trainer.optimizer.zero_grad()
    with record() as steps:
        trainer.train_step()
        trainer.train_step()
    with record() as sharing:
        trainer.share_losses()
        trainer.share_losses()  # nothing left to share: no call
    return grads, [e.op for e in steps.events], [e.op for e in sharing.events]


def test_gradients_are_those_of_the_mean_over_the_global_batch():
    alone = launch(gradients, world_size=1, backend=None, prints="off")[0][0]
    for grads, _, _ in launch(gradients, world_size=3, prints="off"):
        for ours, expected in zip(grads, alone, strict=True):
            assert torch.allclose(ours, expected, atol=1e-6, rtol=1e-4)


def test_a_step_sends_gradients_and_nothing_else():
    parameters = len(list(Trainer(small()).model.parameters()))
    for _, steps, sharing in launch(gradients, prints="off"):
        assert steps == ["all_reduce"] * (2 * parameters)
        assert sharing == ["all_reduce"]


def test_replicas_stay_equal():
    for checksums in launch(checksums_after_training, world_size=3, prints="off"):
        assert len(set(checksums)) == 1


def checksums_after_training() -> list[float]:
    trainer = Trainer(small(steps=5, seed=3))
    trainer.fit()
    own = sum(p.double().sum().item() for p in trainer.model.parameters())
    everybodys = [0.0] * dist.get_world_size()
    dist.all_gather_object(everybodys, own)
    return everybodys
