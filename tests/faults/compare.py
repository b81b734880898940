"""minddp and torch's own DDP side by side, record by record.

    python -m tests.faults.compare        prints a table, writes out/compare.json

Each case runs on every class with 2 and 3 ranks, with one bucket and with one bucket per parameter.
A cell says the worst that happened in any of these runs:

    right       the value, or the error that names the culprit on every rank
    silent      another value, and no error: training goes on, wrong
    error       an error where a value was due, or one that does not name the culprit
    hang        a collective waits until its time-out
    abort       a process dies without a Python traceback
    -           does not apply: there is no such option
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from .batch import jobs_of, launch_of, run_batch
from .cases import CASES
from .record import Case, Outcome
from .rungs import RUNGS, TORCH, Rung

COLUMNS = ("naive", "flat", "legacy", "overlapped", "torch")
ORDER = ("right", "error", "silent", "hang", "abort")  # the later, the worse
WORLD_SIZES = (2, 3)
HANG_LIMIT = 6.0  # seconds
WAITED = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
OUT = Path("out/compare.json")


def verdict(case: Case, world_size: int, outcomes: list[Outcome], torch: bool) -> str:
    """One word for what the ranks made of a case."""
    if not case.judge(world_size, outcomes, torch):
        return "right"
    if any(outcome.died for outcome in outcomes):
        return "hang" if outcomes[0].error.startswith("LaunchTimeout") else "abort"
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if any(WAITED.search(error) for error in errors):
        return "hang"
    return "error" if errors else "silent"


def measure() -> dict[str, dict[str, list[dict]]]:
    """Every run, by case and class."""
    found: dict[str, dict[str, list[dict]]] = {case.name: {} for case in CASES}
    jobs = jobs_of(RUNGS + TORCH)
    for name in dict.fromkeys(launch_of(*job) for job in jobs):
        some = [job for job in jobs if launch_of(*job) == name]
        for world_size in WORLD_SIZES:
            print(f"{name}, {world_size} ranks", flush=True)
            for job, outcomes in zip(some, run_batch(some, world_size, HANG_LIMIT), strict=True):
                rung, case = job
                run = describe(rung, case, world_size, outcomes)
                found[case.name].setdefault(rung.name, []).append(run)
    return found


def describe(rung: Rung, case: Case, world_size: int, outcomes: list[Outcome]) -> dict:
    return {
        "buckets": rung.buckets,
        "later_step": rung.practised,
        "ranks": world_size,
        "verdict": verdict(case, world_size, outcomes, rung.name == "torch"),
        "values": [outcome.value for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def worst(runs: list[dict]) -> str:
    return max((run["verdict"] for run in runs), key=ORDER.index, default="-")


def table(found: dict[str, dict[str, list[dict]]]) -> list[dict]:
    """One row per case: record, title, and a verdict per class."""
    return [
        {
            "record": case.record,
            "case": case.program.__name__,
            "title": case.title,
            "wrong": case.wrong,
            "not_for": case.not_for,
            **{column: worst(found[case.name].get(column, [])) for column in COLUMNS},
            "runs": found[case.name],
        }
        for case in CASES
    ]


def show(rows: list[dict]) -> str:
    width = max(len(row["title"]) for row in rows)
    lines = [f"{'':5}{'':{width}}  " + "".join(f"{column:12}" for column in COLUMNS)]
    for row in rows:
        cells = "".join(f"{row[column]:12}" for column in COLUMNS)
        lines.append(f"{row['record']:5}{row['title']:{width}}  {cells}".rstrip())
    for column in COLUMNS:
        cells = [row[column] for row in rows if row[column] != "-"]
        counts = ", ".join(f"{cells.count(word)} {word}" for word in ORDER if word in cells)
        lines.append(f"{column}: {counts} of {len(cells)} cases")
    return "\n".join(lines)


def main() -> None:
    rows = table(measure())
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    print(show(rows))
    print(f"every run, with values and errors: {OUT}")


if __name__ == "__main__":
    main()
