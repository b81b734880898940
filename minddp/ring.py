"""The ring: reduce-scatter, all-gather and the all-reduce made of both.

Cut the tensor into n chunks, one for each rank. In each step every rank sends one chunk to its
right neighbour and receives another from its left one, so that every link carries S / n bytes
all the time. After Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations" (2009).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from minddp.point_to_point import Peers, refuse_graph
from minddp.reduce_op import SUM, Combine, combiner


def ring_all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp.RedOpType = SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduce-scatter, then all-gather, over n nearly equal chunks of the flattened tensor.

    Each rank sends 2 (n - 1) / n of the tensor, which does not grow with n. Each chunk is
    summed on one rank and copied from there, so all ranks get the same bits.
    """
    refuse_graph(tensor)
    peers = Peers(group)
    flat = tensor.detach().contiguous().view(-1)
    chunks = flat.tensor_split(peers.size)  # views; some are empty if there are few elements
    _ring_reduce_scatter(chunks, combiner(op), peers)
    _ring_all_gather(chunks, peers)
    if not tensor.is_contiguous():  # then flat is a copy
        tensor.detach().copy_(flat.view_as(tensor))


def _ring_reduce_scatter(chunks: Sequence[torch.Tensor], combine: Combine, peers: Peers) -> None:
    """In n - 1 steps, make chunk r complete on rank r.

    A chunk starts one place after its owner and travels once around the ring; each rank that
    it passes adds its own part.
    """
    for step in range(peers.size - 1):
        outgoing = chunks[(peers.rank - 1 - step) % peers.size]
        mine = chunks[(peers.rank - 2 - step) % peers.size]
        received = torch.empty_like(mine)
        peers.exchange(outgoing, peers.rank + 1, received, peers.rank - 1)
        combine(mine, received)


def _ring_all_gather(chunks: Sequence[torch.Tensor], peers: Peers) -> None:
    """In n - 1 steps, copy chunk r from rank r to everybody: pass on what came last."""
    for step in range(peers.size - 1):
        outgoing = chunks[(peers.rank - step) % peers.size]
        incoming = chunks[(peers.rank - 1 - step) % peers.size]
        peers.exchange(outgoing, peers.rank + 1, incoming, peers.rank - 1)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: dist.ReduceOp.RedOpType = SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Combine ``input_list[r]`` of all ranks into ``output`` on rank r, around the ring.

    The inputs stay as they are. Unlike torch's, the pieces may differ in size.
    """
    peers = Peers(group)
    _check_one_each(input_list, output, peers, "input_list", "output")
    chunks = [piece.detach().clone() for piece in input_list]
    _ring_reduce_scatter(chunks, combiner(op), peers)
    output.detach().copy_(chunks[peers.rank])


def all_gather(
    tensor_list: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Put rank r's ``tensor`` into ``tensor_list[r]`` on every rank, around the ring.

    Unlike torch's, the pieces may differ in size.
    """
    peers = Peers(group)
    _check_one_each(tensor_list, tensor, peers, "tensor_list", "tensor")
    tensor_list[peers.rank].detach().copy_(tensor)
    _ring_all_gather(tensor_list, peers)


def _check_one_each(
    pieces: Sequence[torch.Tensor],
    own: torch.Tensor,
    peers: Peers,
    list_name: str,
    own_name: str,
) -> None:
    """Refuse a wrong list before the first message, while no rank waits for another."""
    if len(pieces) != peers.size:
        raise ValueError(
            f"{list_name} must have one tensor for each of the {peers.size} ranks, "
            f"got {len(pieces)} on rank {peers.rank}"
        )
    slot = pieces[peers.rank]
    if (slot.shape, slot.dtype) != (own.shape, own.dtype):
        raise ValueError(
            f"{own_name} and {list_name}[{peers.rank}] must be alike on rank {peers.rank}, got "
            f"{tuple(own.shape)} {own.dtype} and {tuple(slot.shape)} {slot.dtype}"
        )
