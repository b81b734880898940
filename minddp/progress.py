"""How far a training run is: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from minddp.trainer import Trainer

STYLES = ("auto", "bar", "lines", "none")


@contextlib.contextmanager
def show_progress(trainer: Trainer, style: str = "auto") -> Iterator[Callable[[Trainer], None]]:
    """A callback for `Trainer.fit`; `style` is "bar", "lines", "none" or "auto".

    "auto" is a bar if stderr is a terminal (and tqdm is installed), lines otherwise: a bar in a
    log file or a notebook's stored output is a mess. Only one rank should show anything.
    Raises ValueError for another style.
    """
    if style not in STYLES:
        raise ValueError(f"progress style {style!r} is unknown, expected one of {STYLES}")
    if style == "auto":
        style = "bar" if sys.stderr.isatty() and _has_tqdm() else "lines"
    if style == "none":
        yield lambda trainer: None
    elif style == "lines":
        yield _print_line
    else:
        with _bar(trainer) as on_step:
            yield on_step


def _has_tqdm() -> bool:
    try:
        import tqdm  # noqa: F401
    except ImportError:
        return False
    return True


def _summary(trainer: Trainer) -> str:
    text = f"loss {trainer.losses[-1]:.4f}" if trainer.losses else "loss -"
    if trainer.step in trainer.held_out_losses:
        text += f"  held-out {trainer.held_out_losses[trainer.step]:.4f}"
    return f"{text}  {trainer.tokens_per_second:,.0f} tokens/s"


def _is_due(trainer: Trainer) -> bool:
    return trainer.step % trainer.config.log_every == 0 or trainer.step == trainer.config.steps


def _print_line(trainer: Trainer) -> None:
    if _is_due(trainer):
        width = len(str(trainer.config.steps))
        line = f"step {trainer.step:>{width}}/{trainer.config.steps}  {_summary(trainer)}"
        print(line, flush=True)


@contextlib.contextmanager
def _bar(trainer: Trainer) -> Iterator[Callable[[Trainer], None]]:
    from tqdm import tqdm

    with tqdm(total=trainer.config.steps, initial=trainer.step, unit="step") as bar:

        def advance(trainer: Trainer) -> None:
            bar.update(1)
            if _is_due(trainer):
                bar.set_postfix_str(_summary(trainer))

        yield advance
