"""A tiny GPT: the model that the course trains. About 0.8 million parameters with the defaults.

A decoder-only transformer (Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners"): layer norm before each sub-layer, learned positions, and one matrix that serves both
as the table of token embeddings and as the output layer (Press and Wolf 2017).

There is no dropout on purpose: a forward pass draws no random number, so that a run gives the
same losses whatever the number of ranks, and a resumed run the same as an undisturbed one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. `block_size` is the longest sequence that it can look at, in tokens."""

    vocab_size: int
    block_size: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128


class Attention(nn.Module):
    """Multi-head causal self-attention, (B, T, C) to (B, T, C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        # (B, T, 3C) -> three times (B, heads, T, C / heads)
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.qkv(x).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(B, T, C))
        return out


class Block(nn.Module):
    """One transformer layer: attention, then a two-layer MLP, each added to its input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.n_embd
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return x


class GPT(nn.Module):
    """Token numbers (B, T) to scores of the next token (B, T, vocab_size)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        if config.n_embd % config.n_head:
            raise ValueError(
                f"n_embd={config.n_embd} cannot be cut into n_head={config.n_head} equal heads; "
                "choose a multiple"
            )
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd)
        self._initialise()

    def _initialise(self) -> None:
        """Small normal weights, smaller still where a residual is added to.

        GPT-2 takes 0.02 for its width of 768; a narrow model learns much faster from a start that
        is scaled to its width, and 0.5 / sqrt(768) is about that 0.02.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # layer norms start as the identity, as PyTorch makes them
            adds_to_residual = name.endswith(("out.weight", "narrow.weight"))
            depth = 2 * self.config.n_layer if adds_to_residual else 1
            nn.init.normal_(parameter, std=0.5 / math.sqrt(self.config.n_embd * depth))

    def forward(self, idx: Tensor) -> Tensor:
        T = idx.shape[1]
        if T > self.config.block_size:
            raise ValueError(
                f"a sequence of {T} tokens does not fit block_size={self.config.block_size}; "
                "cut it to its last block_size tokens"
            )
        x = self.tokens(idx) + self.positions(torch.arange(T, device=idx.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)  # tied: the embedding table again

    @torch.no_grad()
    def generate(self, idx: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Append `count` sampled tokens to each row of `idx` (B, T); returns (B, T + count)."""
        for _ in range(count):
            scores = self(idx[:, -self.config.block_size :])[:, -1]
            following = torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)
            idx = torch.cat([idx, following], dim=1)
        return idx
