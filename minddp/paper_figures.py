"""The DDP paper's figures 6, 7, 9 and 10, simulated (Li et al. 2020, "PyTorch Distributed").

The paper's cluster is gone, so two links stand for its NCCL and its Gloo: one latency and one
bandwidth each, fitted to two things that the paper reports: the gain of overlap in figure 6 and
the slowdown on 256 GPUs in figure 9. Everything else is a prediction. The shapes hold; the
numbers are those of a model with two parameters.

Known to be off: the paper has Gloo's best bucket near 5 MB and BERT six times slower on 256
GPUs; this model finds up to 50 MB and three times. A real Gloo gets no faster beyond 500 K
values a call (figure 2b), and a straight line cannot say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minddp.cost_model import HierarchicalLink, Link
from minddp.simulator import simulate
from minddp.step_profile import StepProfile

NVLINK = Link(latency_s=5e-6, bandwidth_Bps=6e10)
NCCL_LIKE = HierarchicalLink(NVLINK, Link(latency_s=5e-5, bandwidth_Bps=2.2e9), ranks_per_host=8)
GLOO_LIKE = HierarchicalLink(NVLINK, Link(latency_s=6e-5, bandwidth_Bps=1.0e9), ranks_per_host=8)

BUCKET_CAPS_MB = (0, 0.5, 1, 2, 5, 10, 15, 25, 50, 100, 200)
WORLD_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SYNC_EVERY = (1, 2, 4, 8)

CONFIRMED = "confirmed"  # quoted in public texts about the paper
REMEMBERED = "remembered"  # from memory: check it against the paper before you rely on it


@dataclass(frozen=True)
class PaperNumber:
    """A number that the paper reports, and how far we could confirm it."""

    figure: str
    what: str
    value: str
    trust: str


PAPER = (
    PaperNumber("6", "gain of overlap, ResNet50, NCCL, 32 GPUs", "38.0 %", CONFIRMED),
    PaperNumber("6", "gain of overlap, BERT, NCCL, 32 GPUs", "35.2 %", CONFIRMED),
    PaperNumber("6", "gain of overlap, ResNet50, Gloo, 32 GPUs", "26.8 %", CONFIRMED),
    PaperNumber("6", "gain of overlap, BERT, Gloo, 32 GPUs", "21.5 %", CONFIRMED),
    PaperNumber("7", "best bucket, ResNet50, NCCL, 16 GPUs", "10 to 25 MB", CONFIRMED),
    PaperNumber("7", "best bucket, ResNet50, Gloo, 16 GPUs", "near 5 MB", REMEMBERED),
    PaperNumber("7", "best bucket, BERT, NCCL, 16 GPUs", "near 50 MB", REMEMBERED),
    PaperNumber("7", "right bucket size against a wrong one", "more than 2 x", CONFIRMED),
    PaperNumber("9", "256 GPUs against 1, ResNet50, NCCL", "about 2 x slower", REMEMBERED),
    PaperNumber("9", "256 GPUs against 1, ResNet50, Gloo", "about 3 x slower", REMEMBERED),
    PaperNumber("9", "256 GPUs against 1, BERT, Gloo", "about 6 x slower", REMEMBERED),
    PaperNumber("10", "saved by sync every 8, NCCL, 256 GPUs", "up to 38 %", REMEMBERED),
    PaperNumber("10", "saved by sync every 8, Gloo, 256 GPUs", "up to 57 %", REMEMBERED),
)


def breakdown(
    profile: StepProfile, link: Link | HierarchicalLink, strategy: str, world_size: int = 32
) -> dict[str, float]:
    """Figure 6: seconds of forward, backward, exposed communication and optimizer."""
    timeline = simulate(profile, link, world_size, strategy)
    return {
        "forward": profile.forward_s,
        "backward": profile.backward_seconds,
        "exposed communication": sum(end - start for start, end in timeline.exposed(0)),
        "optimizer": profile.optimizer_s,
    }


def overlap_gain(
    profile: StepProfile, link: Link | HierarchicalLink, world_size: int = 32
) -> float:
    """Figure 6: share of the step that overlap saves, with the same buckets after backward."""
    after = sum(breakdown(profile, link, "legacy", world_size).values())
    during = sum(breakdown(profile, link, "overlapped", world_size).values())
    return 1 - during / after


def bucket_sweep(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    world_size: int = 16,
    caps_mb: Sequence[float] = BUCKET_CAPS_MB,
) -> dict[float, float]:
    """Figure 7: seconds of a step for each bucket size in MiB; 0 is a bucket per parameter."""
    return {cap: simulate(profile, link, world_size, bucket_cap_mb=cap).duration for cap in caps_mb}


def best_cap_mb(sweep: dict[float, float]) -> float:
    """The bucket size of a sweep with the shortest step."""
    return min(sweep, key=sweep.__getitem__)


def scaling(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    world_sizes: Sequence[int] = WORLD_SIZES,
    strategy: str = "overlapped",
) -> dict[int, float]:
    """Figure 9: seconds of a step on each number of ranks, each with a batch of its own."""
    return {n: simulate(profile, link, n, strategy).duration for n in world_sizes}


def sync_sweep(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    world_size: int = 256,
    every: Sequence[int] = SYNC_EVERY,
) -> dict[int, float]:
    """Figure 10: seconds per micro-batch if every n-th one synchronises and updates."""
    return {n: simulate(profile, link, world_size, sync_every=n).duration / n for n in every}
