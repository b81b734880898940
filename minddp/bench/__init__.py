"""Benchmarks: ratios between contenders that take turns within one run.

minddp bench                all of them
minddp bench launch ladder  some of them
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

PARTS = ("launch", "ladder", "recorder", "simulator", "prediction", "link")


def main(argv: list[str] | None = None) -> int:
    """Run the parts asked for, print each, and write the figures to a JSON file."""
    parser = argparse.ArgumentParser(prog="minddp bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", default="out/bench.json", help="where the figures go")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    figures = {}
    for part in arguments.parts or PARTS:
        module = _part(part)
        figures[part] = module.run()
        print(module.report(figures[part]), end="\n\n", flush=True)
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1))
    print(f"figures: {path}")
    return 0


def _part(name: str) -> Any:
    return importlib.import_module(f"minddp.bench.{'latency' if name == 'launch' else name}")
