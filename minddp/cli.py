"""The command ``minddp``: doctor, demo, bench, check.

Each subcommand lives in a module of its own with ``main(argv) -> int | None``, imported only when
it is asked for, so that ``minddp doctor`` answers on a machine that lacks what the others need.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "doctor": ("minddp.doctor", "look at this machine and say what would stop the course"),
    "demo": ("minddp.demo", "train a tiny GPT on 2 ranks under each kind of DDP"),
    "bench": ("minddp.bench", "measure latencies and speed ratios"),
    "check": ("minddp.checks", "grade an exercise: minddp check ex07 path/to/notebook"),
}


def usage() -> str:
    """The help text, one line a command."""
    lines = [f"  {name:<7} {what}" for name, (_, what) in COMMANDS.items()]
    return (
        "usage: minddp COMMAND [options]\n\n"
        + "\n".join(lines)
        + ("\n\n`minddp COMMAND --help` shows the options of one command.")
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 2 for a command that cannot be run."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0 if args else 2
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(COMMANDS)}."
        print(f"minddp: no command {name!r}; {hint}\n\n{usage()}", file=sys.stderr)
        return 2
    return _run(name, rest)


def _run(name: str, argv: list[str]) -> int:
    module_name = COMMANDS[name][0]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            print(f"minddp: this version has no {name!r} yet.", file=sys.stderr)
        else:
            print(
                f"minddp: {name!r} needs the package {error.name!r}, which is not installed. "
                "Install the course's packages: pip install -e '.[course]'",
                file=sys.stderr,
            )
        return 2
    if not callable(getattr(module, "main", None)):
        print(f"minddp: this version has no {name!r} command yet.", file=sys.stderr)
        return 2
    return int(module.main(argv) or 0)


if __name__ == "__main__":
    sys.exit(main())
