"""Collectives built from send and receive: star, tree and ring.

Three shapes for the same job, n ranks and a tensor of S bytes:

    =====  =======================  ======================  ==================================
    shape  all-reduce: steps        bytes sent by a rank    who is busy
    =====  =======================  ======================  ==================================
    star   2 (n - 1)                root (n - 1) S          the root does all the work
    tree   2 ceil(log2 n)           up to ceil(log2 n) S    half of the ranks, then a quarter...
    ring   2 (n - 1)                2 (n - 1) / n * S       everybody, all the time
    =====  =======================  ======================  ==================================

All functions work in place, take global ranks as roots and an optional ``group``, as in
``torch.distributed``. They take any shape, strides and dtype that the backend can send.

No function here can deadlock. In a star and in a tree every message goes along an edge of a
tree, and a rank waits only for ranks further from the root (reduce) or nearer to it
(broadcast): no circle of ranks that wait for each other exists. The ring, in
:mod:`minddp.ring`, is a circle, and is safe because its sends are started before the receive
and finished after it (:meth:`minddp.point_to_point.Peers.exchange`).
"""

import torch
import torch.distributed as dist

from minddp.point_to_point import Peers, refuse_graph
from minddp.reduce_op import SUM, combiner
from minddp.ring import all_gather, reduce_scatter, ring_all_reduce

__all__ = [
    "all_gather",
    "all_reduce",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "ring_all_reduce",
    "star_all_reduce",
    "star_broadcast",
    "star_reduce",
    "tree_all_reduce",
    "tree_broadcast",
    "tree_reduce",
]


# ---------------------------------------------------------------------------------- star


def star_broadcast(
    tensor: torch.Tensor, src: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """``src`` sends its tensor to every other rank, one after the other."""
    refuse_graph(tensor)
    peers = Peers(group)
    root = peers.position_of(src)
    if peers.rank != root:
        peers.recv(tensor, root)
        return
    for other in range(peers.size):
        if other != root:
            peers.send(tensor, other)


def star_reduce(
    tensor: torch.Tensor,
    dst: int = 0,
    op: dist.ReduceOp.RedOpType = SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Every rank sends its tensor to ``dst``, which combines them; the others keep theirs."""
    refuse_graph(tensor)
    peers, combine = Peers(group), combiner(op)
    root = peers.position_of(dst)
    if peers.rank != root:
        peers.send(tensor, root)
        return
    total = tensor.detach()  # the same memory, whether or not autograd watches the tensor
    received = torch.empty_like(total)
    for other in range(peers.size):
        if other != root:
            peers.recv(received, other)
            combine(total, received)


# ---------------------------------------------------------------------------------- tree


def tree_broadcast(
    tensor: torch.Tensor, src: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Each step doubles the number of ranks that have the tensor: ceil(log2 n) steps."""
    refuse_graph(tensor)
    peers = Peers(group)
    root = peers.position_of(src)
    place = (peers.rank - root) % peers.size  # the tree is drawn with the root at place 0
    for distance in reversed(_doublings(peers.size)):
        if place % (2 * distance) == 0 and place + distance < peers.size:
            peers.send(tensor, peers.rank + distance)
        elif place % (2 * distance) == distance:
            peers.recv(tensor, peers.rank - distance)


def tree_reduce(
    tensor: torch.Tensor,
    dst: int = 0,
    op: dist.ReduceOp.RedOpType = SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """The broadcast tree run backwards: each step halves the ranks that still hold a part.

    Only ``dst`` has the result; the other ranks keep their tensor.
    """
    refuse_graph(tensor)
    peers, combine = Peers(group), combiner(op)
    root = peers.position_of(dst)
    place = (peers.rank - root) % peers.size
    partial = tensor.detach() if place == 0 else tensor.detach().clone()
    received = torch.empty_like(partial)
    for distance in _doublings(peers.size):
        if place % (2 * distance) == 0 and place + distance < peers.size:
            peers.recv(received, peers.rank + distance)
            combine(partial, received)
        elif place % (2 * distance) == distance:
            peers.send(partial, peers.rank - distance)


def _doublings(size: int) -> list[int]:
    """The distances 1, 2, 4, ... below ``size``."""
    return [1 << k for k in range((size - 1).bit_length())]


# ---------------------------------------------------------------------------- all-reduce


def star_all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduce to the group's first rank, then broadcast from it."""
    root = dist.get_global_rank(Peers(group).group, 0)
    star_reduce(tensor, root, op, group)
    star_broadcast(tensor, root, group)


def tree_all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduce up a tree to the group's first rank, then broadcast down the same tree."""
    root = dist.get_global_rank(Peers(group).group, 0)
    tree_reduce(tensor, root, op, group)
    tree_broadcast(tensor, root, group)


# ------------------------------------------------------------------ the names one expects

broadcast = tree_broadcast
reduce = tree_reduce
all_reduce = ring_all_reduce
