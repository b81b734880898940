"""The model."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from minddp.gpt import GPT, GPTConfig
from minddp.text import CharText, reference_text

TINY = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(TINY)


def test_has_about_800_thousand_parameters():
    model = GPT(GPTConfig(len(CharText(reference_text()).vocabulary)))
    assert 750_000 < sum(p.numel() for p in model.parameters()) < 850_000


def test_starts_as_undecided_as_a_guess():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=100))
    idx = torch.randint(100, (8, 65))
    loss = F.cross_entropy(model(idx[:, :-1]).flatten(0, 1), idx[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(100), abs=0.3)


def test_does_not_look_ahead(model):
    idx = torch.randint(11, (1, 8))
    changed = idx.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 11
    before, after = model(idx)[0], model(changed)[0]
    assert torch.allclose(before[:5], after[:5], atol=1e-6)
    assert not torch.allclose(before[5:], after[5:], atol=1e-3)


def test_looks_back_and_knows_positions(model):
    scores = model(torch.tensor([[1, 2, 3], [2, 1, 3], [3, 3, 3]]))
    assert not torch.allclose(scores[0, 2], scores[1, 2], atol=1e-4)
    assert not torch.allclose(scores[2, 0], scores[2, 1], atol=1e-4)


def test_the_output_layer_is_the_embedding_table(model):
    # A token that never occurs as input still gets a gradient: from its column of the output.
    F.cross_entropy(model(torch.tensor([[1, 2]]))[0], torch.tensor([2, 3])).backward()
    assert model.tokens.weight.grad[9].abs().sum() > 0
    assert [p.shape for p in model.parameters()].count(torch.Size([11, 16])) == 1


def test_every_parameter_gets_a_gradient(model):
    model(torch.randint(11, (2, 8))).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_learns_a_repeating_pattern(model):
    idx = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 1]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(idx[:, :-1])[0], idx[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model(idx[:, :-1])[0].argmax(dim=-1).tolist() == [2, 3, 4, 1, 2, 3, 4, 1]


def test_generates_past_its_block_size(model):
    start = torch.tensor([[1, 2, 3], [4, 5, 6]])
    made = [model.generate(start, 10, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert made[0].shape == (2, 13)
    assert torch.equal(made[0][:, :3], start)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])
    assert not made[0].requires_grad


def test_a_sequence_that_is_too_long_is_refused(model):
    with pytest.raises(ValueError, match="9 tokens does not fit block_size=8"):
        model(torch.zeros(1, 9, dtype=torch.int64))


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="n_embd=10 .* n_head=4"):
        GPT(GPTConfig(vocab_size=5, n_embd=10, n_head=4))
