"""The training loop, the same for one process and for many: two handles, one model.

The pattern is AllenNLP's (`GradientDescentTrainer`): the trainer keeps `model`, the bare network,
and `ddp_model`, the same network inside a DDP class. Both hold the very same parameters. Only
three things go through `ddp_model`: the call, `train()` and `eval()`. Whatever else one does with
a network (parameters for the optimizer, metrics, checkpoints, sampling) goes through `model`, so
that no name carries a `module.` prefix and no attribute has to be forwarded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from minddp.checkpoint import check_same_run, read_checkpoint, write_checkpoint
from minddp.ddp_choice import ddp_class
from minddp.gpt import GPT
from minddp.text import CharText, batch_starts, cut_rows, held_out_starts, reference_text
from minddp.train_config import TrainConfig


class Trainer:
    """Trains a tiny GPT; with a process group, together with the other ranks.

    Every rank computes its rows of the same global batch. Ranks may have a row more or less than
    others, and still the averaged gradient is exactly that of the mean over the global batch,
    because each rank's loss is (sum over its tokens) * world_size / (tokens of the global batch):
    the average over ranks turns that into (sum over all tokens) / (all tokens).

    Args:
        config: the run; every rank must be given the same.
        text: what to train on; Python's reference manual by default.
        ddp_options: keyword arguments for the DDP class, such as `{"bucket_cap_mb": 1}`.

    Raises ValueError if a rank would have no row of the batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        text: CharText | None = None,
        ddp_options: dict[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        config.check_world_size(self.world_size)
        self.device = _choose_device()
        self.text = text or CharText(reference_text())
        config.check_text(self.text)
        torch.manual_seed(config.seed)
        self.model = GPT(config.gpt(len(self.text.vocabulary))).to(self.device)
        self.ddp_model: nn.Module = self.model  # one process without a group: nothing to wrap
        if dist.is_initialized():
            self.ddp_model = ddp_class(config.ddp_backend)(self.model, **(ddp_options or {}))
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.1
        )
        self.step = 0
        self.losses: list[float] = []  # global mean loss of each step, shared by share_losses()
        self.held_out_losses: dict[int, float] = {}  # by number of steps trained
        self._unshared: list[Tensor] = []
        self._steps_timed, self._seconds = 0, 0.0

    @property
    def tokens_per_second(self) -> float:
        """Characters of the global batch trained on per second, evaluations not counted."""
        tokens = self._steps_timed * self.config.batch_size * self.config.block_size
        return tokens / self._seconds if self._seconds else 0.0

    def fit(self, on_step: Callable[[Trainer], None] | None = None) -> None:
        """Train up to `config.steps`, with evaluations and checkpoints on the way.

        `on_step(trainer)` is called after every step on every rank.
        """
        config = self.config
        self.ddp_model.train()
        while self.step < config.steps:
            start = time.perf_counter()
            self.train_step()
            self._seconds += time.perf_counter() - start
            self._steps_timed += 1
            last = self.step == config.steps
            if last or self.step % config.log_every == 0:
                self.share_losses()
            if last or self.step % config.eval_every == 0:
                self.evaluate()
            if config.checkpoint and (last or self.step % config.save_every == 0):
                self.save(config.checkpoint)
            if on_step:
                on_step(self)

    def train_step(self) -> None:
        """One step on this rank's rows of the global batch of `self.step`."""
        config = self.config
        starts = batch_starts(
            len(self.text.train), config.batch_size, config.block_size, config.seed, self.step
        )
        loss_sum = self._loss_sum(self.text.train, starts)
        loss = loss_sum * self.world_size / (config.batch_size * config.block_size)
        loss.backward()  # returns with gradients that are averaged over the ranks
        nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self._unshared.append(loss.detach())

    def share_losses(self) -> None:
        """Average the losses of the last steps over the ranks: one small all-reduce for them all.

        Each step's loss is needed to look at, not to go on; waiting for it in every step would
        cost a message's latency every time. A collective.
        """
        if not self._unshared:
            return
        sums = self._sum_over_ranks(torch.stack(self._unshared))
        self.losses += (sums / self.world_size).tolist()
        self._unshared.clear()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss per character of the held-out text. A collective.

        The ranks' sums are added and divided once, by the number of all characters: a mean of the
        ranks' means would be wrong as soon as one rank has fewer windows than another.
        """
        config, held_out = self.config, self.text.held_out
        starts = held_out_starts(len(held_out), config.eval_windows, config.block_size)
        was_training = self.ddp_model.training
        self.ddp_model.eval()
        total = self._sum_over_ranks(self._loss_sum(held_out, starts).double())
        self.ddp_model.train(was_training)
        mean = total.item() / (len(starts) * config.block_size)
        self.held_out_losses[self.step] = mean
        return mean

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that a run needs to go on. A collective; the root alone writes."""
        self.share_losses()
        write_checkpoint(
            path,
            {
                "run": self._identity(),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "losses": self.losses,
                "held_out_losses": self.held_out_losses,
            },
        )

    def resume(self, path: str | os.PathLike[str]) -> bool:
        """Take up the run in `path`; False where there is no such file. A collective.

        The number of ranks and the DDP class may differ from those of the run that wrote it.
        Raises CheckpointError when what was trained differs: another text, shape, seed and so on.
        """
        state = read_checkpoint(path)
        if state is None:
            return False
        check_same_run(path, state["run"], self._identity())
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.losses, self.held_out_losses = state["losses"], state["held_out_losses"]
        self._unshared.clear()
        return True

    def _identity(self) -> dict[str, Any]:
        """What must be equal for two runs to be the same training."""
        return {**self.config.identity(), "text": self.text.fingerprint()}

    def _loss_sum(self, numbers: Tensor, starts: list[int]) -> Tensor:
        """Sum of the losses of all characters in this rank's share of the rows."""
        own = starts[self.rank :: self.world_size]
        inputs, targets = cut_rows(numbers, own, self.config.block_size)
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        scores = self.ddp_model(inputs)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")

    def _sum_over_ranks(self, tensor: Tensor) -> Tensor:
        if dist.is_initialized():
            dist.all_reduce(tensor)
        return tensor


def _choose_device() -> torch.device:
    """The rank's own GPU when the group talks over NCCL; the CPU otherwise."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")
