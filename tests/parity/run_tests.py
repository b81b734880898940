"""Run some of torch's DDP tests one after the other and write one line of JSON for each.

    python -m tests.parity.run_tests --out results.jsonl test_ddp_namedtuple ...

The class under test and the shim are chosen by driver.py's environment variables.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import unittest
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one test")
    options = parser.parse_args()
    from torch.testing._internal import common_distributed

    common_distributed.get_timeout = lambda _test_id: options.limit
    with options.out.open("a") as lines:
        for test in options.tests:
            print(json.dumps(run_one(test)), file=lines, flush=True)


def run_one(test: str) -> dict[str, Any]:
    """Run `test`: its name, outcome (passed, failed, skipped), seconds and reason."""
    from .driver import DDPTests

    result = unittest.TestResult()
    started = time.monotonic()
    DDPTests(test).run(result)
    seconds = round(time.monotonic() - started, 2)
    outcome, reason, details = "passed", "", ""
    if result.skipped:
        outcome, reason = "skipped", result.skipped[0][1]
    elif not result.wasSuccessful():
        details = "\n".join(text for _, text in result.errors + result.failures)
        outcome, reason = "failed", cause(details)
    return {
        "test": test,
        "outcome": outcome,
        "seconds": seconds,
        "reason": reason,
        "details": details,
    }


def cause(report: str) -> str:
    """The message of the first exception in a report of tracebacks, on one line."""
    if timed_out := re.search(r"Process \d+ terminated or timed out after [\d.]+ seconds", report):
        return timed_out.group()
    # The parent's own traceback quotes the rank's, which is the one that tells.
    _, _, in_rank = report.partition("and exception:\n")
    lines = (in_rank or report).splitlines()
    messages = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    return messages[0].strip()[:300] if messages else report.strip()[-300:]


if __name__ == "__main__":
    main()
