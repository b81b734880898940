"""Each rank's share of a batch and of a DataLoader."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, cast

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)


def rows_per_rank(batch_size: Any, world_size: int) -> int:
    """How many rows of a global batch each rank gets; see `DistributedBackend.check_batch_size`."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        raise TypeError(f"the global batch size must be a whole number, not {batch_size!r}")
    if batch_size < world_size:
        raise ValueError(
            f"a global batch of {batch_size} leaves some of the {world_size} ranks without a row: "
            f"give at least {world_size}"
        )
    rows, more = divmod(batch_size, world_size)
    if more:
        raise ValueError(
            f"a global batch of {batch_size} cannot be split evenly over {world_size} ranks: "
            f"{more} of them would have {rows + 1} rows and {world_size - more} {rows}, and the "
            "average over ranks is not the mean over rows then; give a multiple of "
            f"{world_size}, or weigh the loss with minddp.weighted_loss"
        )
    return rows


def data_share(loader: DataLoader[Any], rows: int, rank: int, world_size: int) -> DataLoader[Any]:
    """A loader of `rows` rows a step for one rank; together the ranks see the global batches.

    In order, step k of all ranks together holds the rows of batch k of the original. If the number
    of rows is no multiple of the world size, some rows come twice, or, with ``drop_last``, the last
    ones not at all.

    Raises:
        ValueError: a sampler of one's own, an iterable dataset, too few rows.
    """
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{type(dataset).__name__} is an IterableDataset, which only itself can split: let its "
            f"__iter__ yield every {world_size}th row from row {rank} on, and keep the loader"
        )
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        raise ValueError(
            f"the DataLoader has a {type(loader.sampler).__name__} of its own; give one with "
            "shuffle=True or False, for which a DistributedSampler is made here, or keep yours and "
            "leave training_data out"
        )
    _check_length(len(cast(Sized, dataset)), loader.drop_last, world_size)
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset,
        num_replicas=world_size,
        rank=rank,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
    )
    return DataLoader(dataset, batch_size=rows, sampler=sampler, **_other_settings(loader))


def _check_length(length: int, drop_last: bool, world_size: int) -> None:
    if length == 0:
        raise ValueError("the dataset has no rows")
    if drop_last and length < world_size:
        raise ValueError(
            f"the dataset has {length} rows for {world_size} ranks, and drop_last=True leaves "
            "nothing: drop_last=False repeats rows, or use fewer ranks"
        )


def _other_settings(loader: DataLoader[Any]) -> dict[str, Any]:
    names = (
        "num_workers collate_fn pin_memory drop_last timeout worker_init_fn "
        "multiprocessing_context generator prefetch_factor persistent_workers"
    )
    return {name: getattr(loader, name) for name in names.split()}
