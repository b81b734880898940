"""Start one `run_tests` process for each class and mode, two at a time, and gather the results.

The class is exchanged and the shim applied at import, so each combination is a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import catalogue

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch.nn.parallel:DistributedDataParallel"
OURS = "minddp.ddp:OverlappedDDP"
OURS_RENAMED = "tests.parity.torch_names:OverlappedWithTorchNames"


def run_classes(
    classes: list[str], tests: list[str], limit: float
) -> list[dict[str, dict[str, Any]]]:
    """Run `tests` with each class (`module:Class`); for each class, the results by test."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda name: _run_class(name, tests, limit), classes))


def _run_class(ddp_class: str, tests: list[str], limit: float) -> dict[str, dict[str, Any]]:
    batches: dict[tuple[str, str], list[str]] = {}
    for test in tests:
        renamed = ddp_class == OURS and test in catalogue.WITH_TORCH_NAMES
        shim = "1" if test in catalogue.UNDER_SHIM else "0"
        batches.setdefault((OURS_RENAMED if renamed else ddp_class, shim), []).append(test)
    results = {}
    for (name, shim), batch in batches.items():
        results.update(run_batch(name, shim, batch, limit))
    return results


def run_batch(
    ddp_class: str, shim: str, tests: list[str], limit: float
) -> dict[str, dict[str, Any]]:
    """Run `tests` in one process. A test without a result there is reported as failed."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "results.jsonl"), Path(folder, "log")
        command = [sys.executable, "-m", "tests.parity.run_tests", f"--out={out}"]
        environment = {
            **os.environ,
            "MINDDP_PARITY_CLASS": ddp_class,
            "MINDDP_PARITY_SHIM": shim,
            # The ranks of several tests share the cores; one thread each keeps them out of
            # each other's way.
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        for name in ("RANK", "LOCAL_RANK", "MASTER_PORT", "INIT_METHOD", "TORCH_DISTRIBUTED_DEBUG"):
            environment.pop(name, None)
        with log.open("w") as stream:
            exit_status = subprocess.run(
                [*command, f"--limit={limit}", *tests],
                cwd=ROOT,
                env=environment,
                stdout=stream,
                stderr=stream,
                timeout=60 + limit * len(tests),
            ).returncode
        lines = out.read_text().splitlines() if out.exists() else []
        results = {result["test"]: result for result in map(json.loads, lines)}
        tail = log.read_text(errors="replace").strip()[-2000:]
    lost = {"outcome": "failed", "seconds": 0.0, "details": tail}
    for test in tests:
        why = f"the run ended with status {exit_status} before this test: {tail[-200:]}"
        results.setdefault(test, {"test": test, "reason": why, **lost})
    return results
