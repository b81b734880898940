"""Turn a launch that went wrong into the exception that explains it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from minddp._launch.crew import Crew, Rank
from minddp._launch.diagnosis import (
    disagreement,
    format_frames,
    frames,
    last,
    name_cells,
    pending,
    users_frames,
    whereabouts,
)
from minddp._launch.errors import LaunchTimeout, RankFailed
from minddp._launch.watch import Ending, first_failure

TAIL = 10  # lines of output shown for a rank that died without an exception


def rank_failed(crew: Crew) -> RankFailed:
    """The ranks have been stopped; say which failed first, how, and what the others did."""
    culprit = first_failure(crew)
    report = culprit.read_json("failure")
    exitcode: int = report["exitcode"] if report else culprit.process.returncode or 0
    number = culprit.number
    output = crew.output.text(number)
    if report:
        summary = f"rank {number} {failure(culprit)}"
        trace, tail = name_cells(report["traceback"]), ""
    else:
        summary = f"rank {number} {death(culprit)}"
        trace, tail = format_frames(frames(culprit)), last_lines(output)
    others = {rank.number: fate(rank, culprit) for rank in crew if rank is not culprit}
    shown = trace if report else crash_stack(culprit)
    paragraphs = [sentence(summary), shown, tail, mismatch(crew, output)]
    paragraphs.append("\n".join(sentence(f"rank {k} {text}") for k, text in others.items()))
    return RankFailed(
        "\n\n".join(part.rstrip() for part in paragraphs if part.strip()),
        rank=number,
        summary=summary,
        exitcode=exitcode,
        signal=signal.Signals(-exitcode) if exitcode < 0 else None,
        traceback=trace,
        output=output,
        others=others,
    )


def sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def failure(rank: Rank) -> str:
    """Continue "rank 0 ..." for a rank that raised."""
    summary = str(rank.read_json("failure")["summary"])
    return summary if summary.startswith("called sys.exit") else f"failed: {summary}"


def death(rank: Rank) -> str:
    """Continue "rank 0 ..." for a process that ended without a word."""
    exitcode = rank.process.returncode or 0
    if exitcode >= 0 and rank.started is None:
        return f"ended with exit code {exitcode} before it could start its function"
    if exitcode >= 0:
        return (
            f"ended with exit code {exitcode} before its function returned; "
            f"something in it called os._exit({exitcode})"
        )
    name = signal.Signals(-exitcode).name
    return f"was killed by {name} (signal {-exitcode}){often(name)}"


def often(signal_name: str) -> str:
    """The usual reason of a signal."""
    if signal_name == "SIGKILL":
        return "; often the machine has run out of memory"
    if signal_name == "SIGBUS" and Path("/dev/shm").exists():
        free = shutil.disk_usage("/dev/shm").free / 2**20
        return (
            f"; often shared memory is full: /dev/shm has {free:.0f} MB free. Give a container "
            "more with --shm-size, or use num_workers=0 in the DataLoader"
        )
    return ""


def crash_stack(rank: Rank) -> str:
    stack = format_frames(users_frames(frames(rank)))
    return f"It was at (most recent call last):\n{stack}" if stack else ""


def last_lines(output: str) -> str:
    lines = output.splitlines()[-TAIL:]
    return "Its last output:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def fate(rank: Rank, culprit: Rank) -> str:
    """What became of a rank that is not the culprit: continue "rank 0 ..."."""
    if rank.died is not None:
        return death(rank)
    if rank.failed is not None:
        if rank.read_json("failure")["echo"]:
            return f"lost its connection to a peer{f' in {last(rank)}' if last(rank) else ''}"
        return f"also {failure(rank)}"
    if rank.returned is not None:
        return f"had {whereabouts(rank)}"
    return f"was stopped because rank {culprit.number} failed; it {whereabouts(rank)}"


def mismatch(crew: Crew, output: str) -> str:
    """Say so if ranks called collectives that do not fit together."""
    if "op.preamble.length <= op.nbytes" in output:
        return (
            "gloo received more data than this rank had asked for: the ranks called different "
            "collectives, or the same one with different sizes."
        )
    return disagreement(list(crew))


def launch_timeout(crew: Crew, ending: Ending, timeout: float) -> LaunchTimeout:
    """Say what each rank waits for, and where."""
    states = {rank.number: whereabouts(rank) for rank in crew}
    story = "; ".join(f"rank {number} {state}" for number, state in states.items())
    opening = f"no answer after {timeout:.1f} s"
    if ending == "deadlock":
        opening = "no answer will come"
    stacks = {rank.number: frames(rank) for rank in crew if rank.running}
    paragraphs = [f"{opening}. {story}.", disagreement(list(crew))]
    for number, stack in stacks.items():
        own = format_frames(users_frames(stack))
        paragraphs.append(f"rank {number} is at (most recent call last):\n{own}" if own else "")
    return LaunchTimeout(
        "\n\n".join(part.rstrip() for part in paragraphs if part.strip()),
        summary=f"{opening}. {story}",
        stacks={number: format_frames(stack) for number, stack in stacks.items()},
        collectives={rank.number: pending(rank) or last(rank) for rank in crew},
        outputs=[crew.output.text(rank.number) for rank in crew],
    )
