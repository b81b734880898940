"""The ladder: four ways to average gradients, each mending a flaw of the one before.

    naive       one all-reduce per parameter           pays the latency hundreds of times
    flat        one all-reduce for everything          needs a copy of the model's size
    legacy      a buffer filled again and again        all of it after backward
    overlapped  buckets sent while backward runs

`c10d` is torch's own class, for comparison.
"""

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from minddp.ddp.base import BaseDDP
from minddp.ddp.flat import FlatDDP
from minddp.ddp.legacy import LegacyDDP
from minddp.ddp.naive import NaiveDDP
from minddp.ddp.overlapped import OverlappedDDP

DDP_BACKENDS: dict[str, type[Any]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "legacy": LegacyDDP,
    "overlapped": OverlappedDDP,
    "c10d": DistributedDataParallel,
}
ALIASES = {"no_c10d": "legacy", "legacy_ddp": "legacy", "torch": "c10d", "pytorch_ddp": "c10d"}
DDP_BACKENDS.update({alias: DDP_BACKENDS[name] for alias, name in ALIASES.items()})

__all__ = ["DDP_BACKENDS", "BaseDDP", "FlatDDP", "LegacyDDP", "NaiveDDP", "OverlappedDDP"]
