"""Which DDP class: names, their options, and the flags that choose them."""

from __future__ import annotations

import argparse
import difflib
import inspect
from typing import Any

from torch import nn

from minddp.ddp import DDP_BACKENDS

FLAGS = ("bucket_cap_mb", "buffer_size", "find_unused_parameters", "broadcast_buffers")


def ddp_class(name: str) -> Any:
    """The class of a name in `DDP_BACKENDS`; ValueError names the choices and the nearest."""
    if name in DDP_BACKENDS:
        return DDP_BACKENDS[name]
    near = difflib.get_close_matches(str(name), DDP_BACKENDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown ddp_backend {name!r}; choose from {', '.join(DDP_BACKENDS)}{hint}")


def check_options(name: str, backend: Any, options: dict[str, Any]) -> None:
    """An option that the class does not take is an error, not silence."""
    taken: set[str] = set()
    for kind in backend.__mro__:
        if "__init__" in kind.__dict__ and kind is not nn.Module and kind is not object:
            taken |= set(inspect.signature(kind.__init__).parameters)
    taken -= {"self", "module", "process_group", "options", "args", "kwargs"}
    for option in options:
        if option not in taken:
            near = difflib.get_close_matches(option, taken, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"ddp_backend {name!r} ({backend.__name__}) takes no option {option!r}{hint}; "
                f"it takes {', '.join(sorted(taken))}"
            )


def add_ddp_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add fairseq's flags. Those not given stay None, and the class's own default holds."""
    group = parser.add_argument_group("data parallel training")
    group.add_argument("--ddp-backend", default="overlapped", choices=list(DDP_BACKENDS))
    group.add_argument("--bucket-cap-mb", type=float, metavar="MIB", help="bucket size in MiB")
    group.add_argument("--buffer-size", type=int, metavar="N", help="legacy buffer, in elements")
    for flag in ("--find-unused-parameters", "--broadcast-buffers"):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
    return parser
