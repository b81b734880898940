"""``minddp doctor``: look at the machine and say what would stop the course, and what to do.

Each check is a function that returns one `Finding`. A check looks at the real thing (a socket is
opened, two ranks are launched): what a version number promises is not evidence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from .finding import Finding, Status
from .machine import check_cores, check_host_name, check_loopback, check_shared_memory
from .ranks import check_launch, check_start_method
from .software import check_course_packages, check_gloo, check_gpus, check_python, check_torch

__all__ = ["CHECKS", "Finding", "Status", "essentials", "examine", "main", "report"]

CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_torch,
    check_gloo,
    check_gpus,
    check_cores,
    check_loopback,
    check_host_name,
    check_shared_memory,
    check_start_method,
    check_course_packages,
    check_launch,
)
ESSENTIAL = ("python", "torch", "gloo", "loopback", "2-rank launch")


def examine(checks: Sequence[Callable[[], Finding]] | None = None) -> Iterator[Finding]:
    """Run the checks in order and yield each finding as soon as it is known.

    A check that raises is a failure of its own line; the others still run.
    """
    for check in CHECKS if checks is None else checks:
        try:
            yield check()
        except Exception as error:  # a doctor does not faint
            name = check.__name__.removeprefix("check_").replace("_", " ")
            found = f"{type(error).__name__}: {error}"
            yield Finding(name, "failure", found, "this check itself broke; the line says how")


def report(finding: Finding) -> str:
    """One finding as text: a line, and a second one with the way out if it is not well."""
    line = f"{finding.status:<8} {finding.name:<16} {finding.found}"
    return line + (f"\n{'':<25} -> {finding.advice}" if finding.advice else "")


def essentials(findings: Sequence[Finding]) -> str:
    """The lines without which no notebook runs, as name and status only: the same everywhere."""
    chosen = [finding for finding in findings if finding.name in ESSENTIAL]
    return "\n".join(f"{finding.name:<16} {finding.status}" for finding in chosen)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0 when nothing failed (warnings allowed), 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="minddp doctor", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args(argv)
    findings = []
    for finding in examine():
        findings.append(finding)
        if not args.json:
            print(report(finding), flush=True)
    failed = [finding.name for finding in findings if finding.status == "failure"]
    if args.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(f) for f in findings]}, indent=2))
    else:
        print(f"\nstopped by: {', '.join(failed)}" if failed else "\nready for the course")
    return 1 if failed else 0
