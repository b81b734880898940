"""Torch's own DDP tests, those that run on the CPU as shipped, with our class.

All 54, with the shim and torch's class beside ours, are `make parity`.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import catalogue
from .__main__ import shortfalls
from .batches import OURS, run_classes
from .run_tests import cause

MUST_PASS = [test for test in catalogue.AS_SHIPPED if test not in catalogue.LEFT_OUT]


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """A process runs many of them: its fork server loads torch once."""
    (results,) = run_classes([OURS], MUST_PASS, limit=60.0)
    return results


@pytest.mark.parametrize("test", MUST_PASS)
def test_as_shipped(results: dict[str, dict[str, Any]], test: str) -> None:
    result = results[test]
    assert result["outcome"] == "passed", f"{result['reason']}\n{result['details']}"


def test_catalogue_is_complete_and_says_why_a_test_is_left_out() -> None:
    assert len(set(catalogue.ALL)) == len(catalogue.ALL) == 54
    named = {*catalogue.LEFT_OUT, *catalogue.WITH_TORCH_NAMES}
    assert named <= set(catalogue.ALL)
    assert len(named) == len(catalogue.LEFT_OUT) + len(catalogue.WITH_TORCH_NAMES)
    assert all(catalogue.LEFT_OUT.values())
    assert catalogue.FLOOR <= len(catalogue.ALL) - len(catalogue.LEFT_OUT)


def _results(failing: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {
        test: {"outcome": "failed" if test in failing else "passed", "reason": "broken"}
        for test in catalogue.ALL
    }


def test_one_failure_of_a_test_that_should_pass_is_a_shortfall() -> None:
    tests = list(catalogue.ALL)
    assert shortfalls(tests, _results(failing=tuple(catalogue.LEFT_OUT))) == []
    complaints = shortfalls(tests, _results(failing=("test_ddp_namedtuple",)))
    assert complaints == ["test_ddp_namedtuple should pass: broken"]


def test_too_few_passes_are_a_shortfall_even_if_each_has_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tests = list(catalogue.ALL)
    monkeypatch.setattr(catalogue, "LEFT_OUT", dict.fromkeys(tests, "given up"))
    complaints = shortfalls(tests, _results(failing=catalogue.ALL))
    assert complaints == [f"0 tests passed; the floor is {catalogue.FLOOR}"]


def test_cause_is_the_message_that_the_rank_raised() -> None:
    report = (
        "Traceback (most recent call last):\n"
        '  File "common_distributed.py", line 1, in wrapper\n'
        "RuntimeError: Process 1 exited with error code 10 and exception:\n"
        "Traceback (most recent call last):\n"
        '  File "distributed_test.py", line 2, in test\n'
        "ValueError: parameter 3 differs\n"
        "Exception raised from somewhere\n"
    )
    assert cause(report) == "ValueError: parameter 3 differs"
    hung = "RuntimeError: Process 0 terminated or timed out after 60.1 seconds"
    assert cause(hung) == "Process 0 terminated or timed out after 60.1 seconds"
