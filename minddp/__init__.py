"""Distributed data parallel training, built step by step on real processes."""

from minddp.buckets import plan_buckets
from minddp.cost_model import HierarchicalLink, Link
from minddp.ddp import (
    DDP_BACKENDS,
    BaseDDP,
    FlatDDP,
    LegacyDDP,
    NaiveDDP,
    OverlappedDDP,
)
from minddp.debug import checked_collectives
from minddp.emulated_link import EmulatedLink
from minddp.factory import DistributedModel, add_ddp_args, unwrap
from minddp.launcher import LaunchTimeout, RankFailed, launch
from minddp.profiling import profile_step
from minddp.recorder import Collective, Recording, record
from minddp.simulator import simulate
from minddp.step_profile import StepProfile, load_profile
from minddp.timeline import Span, Timeline
from minddp.training import global_grad_norm, seed_everything, weighted_loss
from minddp.verification import check_against_single_process, verify_replicas

__all__ = [
    "DDP_BACKENDS",
    "BaseDDP",
    "Collective",
    "DistributedModel",
    "EmulatedLink",
    "FlatDDP",
    "HierarchicalLink",
    "LaunchTimeout",
    "LegacyDDP",
    "Link",
    "NaiveDDP",
    "OverlappedDDP",
    "RankFailed",
    "Recording",
    "Span",
    "StepProfile",
    "Timeline",
    "add_ddp_args",
    "check_against_single_process",
    "checked_collectives",
    "global_grad_norm",
    "launch",
    "load_profile",
    "plan_buckets",
    "profile_step",
    "record",
    "seed_everything",
    "simulate",
    "unwrap",
    "verify_replicas",
    "weighted_loss",
]
