"""Messages between two ranks of a group: all that the collectives are built from."""

import torch
import torch.distributed as dist


class Peers:
    """The ranks of one group, numbered 0 to size - 1, as this rank sees them.

    ``torch.distributed.send`` wants global ranks and contiguous memory; algorithms are
    easier to read with positions inside the group and any tensor. This class translates.
    Every message is written to or read from memory in place where the layout allows it.

    Raises:
        RuntimeError: there is no process group yet.
        ValueError: this process is not a member of ``group``.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        group = dist.group.WORLD if group is None else group
        if group is None:
            raise RuntimeError(
                "there is no process group; run the function with minddp.launch, or call "
                "torch.distributed.init_process_group first"
            )
        self.group: dist.ProcessGroup = group
        self.rank: int = dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError(
                f"rank {dist.get_rank()} called a collective of a group that it is not a member "
                "of; call it only on the ranks that were given to new_group()"
            )
        self.size: int = dist.get_world_size(self.group)

    def position_of(self, global_rank: int) -> int:
        """Position inside the group of a global rank (as in torch, roots are global ranks)."""
        members: list[int] = dist.get_process_group_ranks(self.group)
        if global_rank not in members:
            raise ValueError(f"root must be one of the group's ranks {members}, got {global_rank}")
        return members.index(global_rank)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send to position ``to`` and return when the memory may be used again."""
        self._start_send(tensor, to).wait()

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        """Wait for a message from position ``source`` and write it into ``tensor``."""
        target = tensor.detach()
        landing = target if target.is_contiguous() else _contiguous_like(target)
        dist.recv(landing, src=self._global(source), group=self.group)
        if landing is not target:
            target.copy_(landing)

    def exchange(
        self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int
    ) -> None:
        """Send one tensor and receive another at the same time.

        If every rank of a ring began with a blocking send, each could wait for its neighbour
        to receive, and nobody would. Here the send is only started; so every rank reaches its
        receive, which lets every send finish.
        """
        sending = self._start_send(outgoing, to)
        self.recv(incoming, source)
        sending.wait()

    def _start_send(self, tensor: torch.Tensor, to: int) -> dist.Work:
        # A packed copy is kept alive by the request until it has been sent.
        packed = tensor.detach().contiguous()
        request = dist.isend(packed, dst=self._global(to), group=self.group)
        if request is None:
            raise RuntimeError(f"rank {self.rank} could not start a send to {to}")
        return request

    def _global(self, position: int) -> int:
        return int(dist.get_global_rank(self.group, position % self.size))


def refuse_graph(tensor: torch.Tensor) -> None:
    """Raise RuntimeError for a tensor that autograd computed: a collective works in place and
    outside the graph, so backward would give this rank's part of the gradient alone, in silence."""
    if tensor.grad_fn is not None and torch.is_grad_enabled():
        raise RuntimeError(
            "collectives are not differentiable: this tensor is part of an autograd graph. For a "
            "metric pass tensor.detach(); for a loss let DDP average the gradients"
        )


def _contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
