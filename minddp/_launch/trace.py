"""In a rank: where it is, and which collectives it has begun. In the launcher: as objects."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

LAUNCHER_FOLDER = str(Path(__file__).parent)
DEFAULT_GROUP = "0"
KEEP = 64  # the newest collectives of a rank that a trace holds
DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class CollectiveCall:
    """One collective that a rank has begun, as torch's flight recorder noted it."""

    op: str  # "all_reduce", "broadcast", ...
    number: int  # counted from 0 on this rank, over all its groups
    numel: int  # elements that this rank put in
    dtype: str  # "float32"; "" where nothing is sent
    group: str  # torch's name of the process group; "0" is the default group
    position: int  # counted in this group: the same on all its ranks if they agree
    done: bool

    def __str__(self) -> str:
        size = f" ({self.numel} {self.dtype})" if self.dtype else ""
        group = "" if self.group == DEFAULT_GROUP else f" of group {self.group}"
        return f"{self.op} #{self.number}{size}{group}"


def take_trace(own_barrier: bool) -> dict[str, Any]:
    """The main thread's stack, innermost frame last, and the newest collectives.

    `own_barrier`: the launcher began with a barrier, which is not counted.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = traceback.extract_stack(frame)
    launcher = [i for i, f in enumerate(frames) if f.filename.startswith(LAUNCHER_FOLDER)]
    users = frames[launcher[-1] + 1 :] if launcher else frames
    return {
        "stack": [[f.filename, f.lineno, f.name, f.line] for f in users],
        "collectives": recorded_collectives(own_barrier),
    }


def recorded_collectives(own_barrier: bool) -> list[dict[str, Any]] | None:
    """What the flight recorder holds, or None: torch is too old to have one for gloo, or the
    caller has turned it off."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None or os.environ.get("TORCH_FR_BUFFER_SIZE") == "0":
        return None
    entries = json.loads(dump()).get("entries", [])
    calls = [describe_entry(entry, int(own_barrier)) for entry in entries]
    return [call for call in calls if call["number"] >= 0][-KEEP:]


def describe_entry(entry: dict[str, Any], launchers: int) -> dict[str, Any]:
    dtypes = entry["input_dtypes"]
    return {
        "op": entry["profiling_name"].rpartition(":")[2],
        "number": entry["record_id"] - launchers,
        "numel": sum(prod(shape) for shape in entry["input_sizes"]),
        "dtype": DTYPES.get(dtypes[0], dtypes[0]) if dtypes else "",
        "group": entry["process_group"][0],
        "position": entry["collective_seq_id"],
        "done": bool(entry.get("retired")),
    }
