"""Distributed data parallel training, built step by step on real processes."""

from minddp.buckets import plan_buckets
from minddp.ddp import (
    DDP_BACKENDS,
    BaseDDP,
    FlatDDP,
    LegacyDDP,
    NaiveDDP,
    OverlappedDDP,
)
from minddp.debug import checked_collectives
from minddp.factory import DistributedModel, add_ddp_args, unwrap
from minddp.launcher import LaunchTimeout, RankFailed, launch
from minddp.recorder import Collective, Recording, record
from minddp.timeline import Span, Timeline
from minddp.training import global_grad_norm, seed_everything, weighted_loss
from minddp.verification import check_against_single_process, verify_replicas

__all__ = [
    "DDP_BACKENDS",
    "BaseDDP",
    "Collective",
    "DistributedModel",
    "FlatDDP",
    "LaunchTimeout",
    "LegacyDDP",
    "NaiveDDP",
    "OverlappedDDP",
    "RankFailed",
    "Recording",
    "Span",
    "Timeline",
    "add_ddp_args",
    "check_against_single_process",
    "checked_collectives",
    "global_grad_norm",
    "launch",
    "plan_buckets",
    "record",
    "seed_everything",
    "unwrap",
    "verify_replicas",
    "weighted_loss",
]
