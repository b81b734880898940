"""What a message costs, and what an all-reduce made of messages costs.

The alpha-beta model (Hockney 1994): a message of S bytes takes alpha + S / bandwidth seconds.
Alpha, the latency, is paid for each message whatever its size. An all-reduce is a number of
steps that follow one another; in each, the slowest message sets the pace. So every algorithm
costs ``start_s + bytes * s_per_byte``, and only the two numbers differ:

    ============  ================================  =======================================
    algorithm     start_s                           s_per_byte
    ============  ================================  =======================================
    star          2 (n - 1) alpha                   2 (n - 1) / bandwidth
    tree          2 ceil(log2 n) alpha              2 ceil(log2 n) / bandwidth
    ring          2 (n - 1) alpha                   2 (n - 1) / n / bandwidth
    hierarchical  a ring inside each host, then a ring between the hosts
    ============  ================================  =======================================

The tree is the one in :mod:`minddp.collectives`, which passes whole tensors; NCCL's trees are
cut into pieces and pay for the bytes only twice.
"""

import math
from dataclasses import dataclass

ALGORITHMS = ("ring", "tree", "star", "hierarchical")


def require(holds: bool, field: str, expected: str, found: object) -> None:
    """Raise ``ValueError`` that names the field, unless ``holds``."""
    if not holds:
        raise ValueError(f"{field} must be {expected}, got {found!r}")


@dataclass(frozen=True)
class Link:
    """A wire between any two ranks: ``latency_s`` seconds a message, ``bandwidth_Bps`` bytes/s.

    Raises:
        ValueError: negative latency, or a bandwidth that is not above zero.
    """

    latency_s: float
    bandwidth_Bps: float

    def __post_init__(self) -> None:
        require(0 <= self.latency_s < math.inf, "latency_s", ">= 0 seconds", self.latency_s)
        require(self.bandwidth_Bps > 0, "bandwidth_Bps", "> 0 bytes/s", self.bandwidth_Bps)


@dataclass(frozen=True)
class HierarchicalLink:
    """Hosts of ``ranks_per_host`` ranks: one link inside a host, another between hosts.

    Consecutive ranks share a host. ``between`` is a host's network card: what the ranks of one
    host send at the same time shares its bandwidth.
    """

    inside: Link
    between: Link
    ranks_per_host: int

    def __post_init__(self) -> None:
        require_count("ranks_per_host", self.ranks_per_host)


@dataclass(frozen=True)
class CallCost:
    """Seconds of one collective: ``start_s + nbytes * s_per_byte``."""

    start_s: float
    s_per_byte: float

    def seconds(self, nbytes: float) -> float:
        require(0 <= nbytes < math.inf, "nbytes", ">= 0 bytes", nbytes)
        return self.start_s + nbytes * self.s_per_byte

    def __add__(self, other: "CallCost") -> "CallCost":
        return CallCost(self.start_s + other.start_s, self.s_per_byte + other.s_per_byte)


def require_count(field: str, value: int) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number from 1 up."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(is_count, field, "a whole number >= 1", value)


def all_reduce_cost(
    link: Link | HierarchicalLink, world_size: int, algorithm: str = "ring"
) -> CallCost:
    """Cost of one all-reduce over ``world_size`` ranks.

    On a :class:`HierarchicalLink` a plain ring runs at the pace of its slowest edge; each round
    of a tree, at that of its slowest pair.

    Raises:
        ValueError: world size below 1, an unknown algorithm, or ``"hierarchical"`` on a link
            that is not hierarchical.
    """
    require_count("world_size", world_size)
    require(algorithm in ALGORITHMS, "algorithm", f"one of {ALGORITHMS}", algorithm)
    if algorithm == "ring":
        return _ring(_slowest(link, world_size), world_size)
    if algorithm == "star":
        return _rounds(2 * (world_size - 1), _slowest(link, world_size))
    if algorithm == "tree":
        return _tree(link, world_size)
    if not isinstance(link, HierarchicalLink):
        raise ValueError(f"link must be a HierarchicalLink for algorithm 'hierarchical': {link!r}")
    ranks = min(world_size, link.ranks_per_host)
    hosts = math.ceil(world_size / link.ranks_per_host)
    return _ring(link.inside, ranks) + _ring(link.between, hosts)


def _rounds(count: int, link: Link) -> CallCost:
    """``count`` messages of the whole tensor, one after the other."""
    return CallCost(count * link.latency_s, count / link.bandwidth_Bps)


def _ring(link: Link, size: int) -> CallCost:
    """2 (n - 1) steps; in each, every rank sends one of n chunks.

    Between hosts it holds for the shards too: g ranks run g rings at a time, each with 1 / g of
    the bytes and 1 / g of the card's bandwidth.
    """
    steps = 2 * (size - 1)
    return CallCost(steps * link.latency_s, steps / (size * link.bandwidth_Bps))


def _tree(link: Link | HierarchicalLink, size: int) -> CallCost:
    """A message up and a message down for each doubling of the distance between partners."""
    total = CallCost(0.0, 0.0)
    for k in range((size - 1).bit_length()):
        # pairs (p, p + 2**k) for every p that is a multiple of 2**(k + 1)
        same_host = isinstance(link, HierarchicalLink) and link.ranks_per_host % 2 ** (k + 1) == 0
        total += _rounds(2, _slowest(link, 1 if same_host else size))
    return total


def _slowest(link: Link | HierarchicalLink, size: int) -> Link:
    """The link that sets the pace among the first ``size`` ranks."""
    if isinstance(link, Link):
        return link
    if size <= link.ranks_per_host:
        return link.inside
    latency = max(link.inside.latency_s, link.between.latency_s)
    bandwidth = min(link.inside.bandwidth_Bps, link.between.bandwidth_Bps)
    return Link(latency, bandwidth)
