"""Run torch's DDP tests with torch's class and with ours, and compare.

    python -m tests.parity                      # both classes, all tests
    python -m tests.parity test_ddp_namedtuple  # some tests
    python -m tests.parity --ours my.module:MyDDP

Prints a table and writes out/parity.json. Exit status 1 when a test that should pass fails, or
when fewer pass than the floor in catalogue.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import catalogue
from .batches import OURS, TORCH, run_classes

Results = dict[str, dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tests", nargs="*", help="names; all when none is given")
    parser.add_argument("--ours", default=OURS, help="the class to compare, as module:Class")
    parser.add_argument("--out", type=Path, default=Path("out/parity.json"))
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one test")
    options = parser.parse_args()
    unknown = set(options.tests) - set(catalogue.ALL)
    if unknown:
        parser.error(f"not in tests/parity/catalogue.py: {', '.join(sorted(unknown))}")

    tests = options.tests or list(catalogue.ALL)
    theirs, ours = run_classes([TORCH, options.ours], tests, options.limit)
    print_table(tests, theirs, ours)
    write_json(options.out, tests, theirs, ours)
    if options.ours != OURS:
        return 0
    complaints = shortfalls(tests, ours)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


def print_table(tests: list[str], theirs: Results, ours: Results) -> None:
    """One line a test: what each class made of it, and why ours failed."""
    width = max(map(len, tests))
    print(f"{'test':<{width}}  torch    minddp   reason")
    for test in tests:
        star = "*" if test in catalogue.WITH_TORCH_NAMES else ""
        cells = f"{theirs[test]['outcome']:<8} {ours[test]['outcome'] + star:<8}"
        print(f"{test:<{width}}  {cells} {reason(test, ours)}".rstrip())
    print(f"{'passed':<{width}}  {passed(theirs):<8} {passed(ours):<8} of {len(tests)}")
    print(f"* run under torch's own names (torch_names.py): {passed(renamed(ours))} of these pass")


def reason(test: str, ours: Results) -> str:
    """Why our class does not pass: the decision if there is one, else the error."""
    if ours[test]["outcome"] == "passed":
        return ""
    return catalogue.LEFT_OUT.get(test) or str(ours[test]["reason"])


def passed(results: Results) -> int:
    return sum(result["outcome"] == "passed" for result in results.values())


def renamed(results: Results) -> Results:
    return {test: results[test] for test in results if test in catalogue.WITH_TORCH_NAMES}


def shortfalls(tests: list[str], ours: Results) -> list[str]:
    """What keeps the run from being a success, in words."""
    complaints = [
        f"{test} should pass: {ours[test]['reason']}"
        for test in tests
        if test not in catalogue.LEFT_OUT and ours[test]["outcome"] != "passed"
    ]
    complete = set(tests) == set(catalogue.ALL)
    if complete and passed(ours) < catalogue.FLOOR:
        complaints.append(f"{passed(ours)} tests passed; the floor is {catalogue.FLOOR}")
    return complaints


def write_json(path: Path, tests: list[str], theirs: Results, ours: Results) -> None:
    rows = [
        {
            "test": test,
            "as_shipped": test in catalogue.AS_SHIPPED,
            "torch": theirs[test]["outcome"],
            "minddp": ours[test]["outcome"],
            "torch_names": catalogue.WITH_TORCH_NAMES.get(test, ""),
            "reason": reason(test, ours),
            "torch_seconds": theirs[test]["seconds"],
            "minddp_seconds": ours[test]["seconds"],
        }
        for test in tests
    ]
    counts = {
        "torch": passed(theirs),
        "minddp": passed(ours),
        "minddp_under_torch_names": passed(renamed(ours)),
        "of": len(tests),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"counts": counts, "tests": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
