"""gloo or NCCL? Decided from what every rank says of itself, so that all decide the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

CHOICES = ("gloo", "nccl")


@dataclass(frozen=True)
class Card:
    """What a rank tells the others of itself when they meet."""

    node: str
    world_size: int
    gpus: int  # that it can see, and could use with NCCL
    wanted: str | None  # what was asked for by name


def usable_gpus() -> int:
    """GPUs that are visible; 0 if torch cannot use NCCL."""
    return torch.cuda.device_count() if dist.is_nccl_available() else 0


def choose_communication(cards: list[Card]) -> str:
    """NCCL if each rank has a GPU of its own, or if it is asked for; else gloo.

    Args:
        cards: by rank.

    Raises:
        ValueError: ranks that contradict each other, NCCL without enough GPUs; all faults at once.
    """
    faults = []
    wanted = {card.wanted for card in cards}
    if len(wanted) > 1:
        lines = ", ".join(f"rank {r} {c.wanted or 'no preference'}" for r, c in enumerate(cards))
        faults.append(f"the ranks ask for different communication: {lines}")
    sizes = {card.world_size for card in cards}
    if len(sizes) > 1:
        lines = ", ".join(f"rank {r} {card.world_size}" for r, card in enumerate(cards))
        faults.append(f"the ranks have different world sizes: {lines}")
    short = _hosts_short_of_gpus(cards)
    if "nccl" in wanted and short:
        faults.append(
            f"NCCL needs a CUDA device for each rank: {'; '.join(short)}. Use fewer ranks, let "
            "each rank see all devices of its host, or use gloo"
        )
    if faults:
        raise ValueError(". ".join(faults))
    return wanted.pop() or ("gloo" if short else "nccl")


def _hosts_short_of_gpus(cards: list[Card]) -> list[str]:
    short = []
    for node in dict.fromkeys(card.node for card in cards):
        on_node = [card for card in cards if card.node == node]
        gpus = min(card.gpus for card in on_node)
        if gpus < len(on_node):
            short.append(f"{len(on_node)} ranks on {node}, {gpus} CUDA devices found")
    return short
