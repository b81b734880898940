"""The share of a batch and of a DataLoader that each rank gets."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from minddp.backends.data_share import data_share, rows_per_rank


def loader(rows, **settings):
    return DataLoader(TensorDataset(torch.arange(rows)), **settings)


def shares(original, world_size):
    """By rank, the batches of its share as lists of row numbers."""
    rows = rows_per_rank(original.batch_size, world_size)
    ranks = [data_share(original, rows, rank, world_size) for rank in range(world_size)]
    return [[batch[0].tolist() for batch in share] for share in ranks]


@pytest.mark.parametrize(("batch", "ranks", "rows"), [(1, 1, 1), (4, 2, 2), (12, 3, 4)])
def test_rows_per_rank(batch, ranks, rows):
    assert rows_per_rank(batch, ranks) == rows


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (1, ValueError, "global batch of 1 leaves some of the 2 ranks without a row"),
        (0, ValueError, "global batch of 0"),
        (5, ValueError, "global batch of 5 cannot be split evenly over 2 ranks: 1 of them would "),
        (4.0, TypeError, "whole number, not 4.0"),
        (True, TypeError, "whole number, not True"),
    ],
)
def test_batches_that_cannot_be_split(batch, error, message):
    with pytest.raises(error, match=message):
        rows_per_rank(batch, 2)


def test_together_the_ranks_see_the_batches_of_the_original():
    original = loader(10, batch_size=4)
    first, second = shares(original, 2)
    for whole, *parts in zip(original, first, second, strict=True):
        assert sorted(sum(parts, [])) == whole[0].tolist()
    assert [len(batch) for batch in first] == [2, 2, 1]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shuffled_batches_are_the_same_for_any_number_of_ranks(ranks):
    original = loader(8, batch_size=4, shuffle=True)
    whole = [set(batch) for batch in shares(original, 1)[0]]
    parts = [set().union(*batches) for batches in zip(*shares(original, ranks), strict=True)]
    assert parts == whole
    assert whole != [{0, 1, 2, 3}, {4, 5, 6, 7}]
    share = data_share(original, 4, 0, 1)
    share.sampler.set_epoch(1)
    assert [set(batch[0].tolist()) for batch in share] != whole


def test_settings_are_kept():
    def pick(rows):
        return [row[0].item() for row in rows]

    original = loader(5, batch_size=2, collate_fn=pick, drop_last=True)
    share = data_share(original, 1, 1, 2)
    assert list(share) == [[1], [3]]


def test_fewer_rows_than_ranks_are_repeated_or_refused():
    few = shares(loader(3, batch_size=8), 8)
    assert sum(sum(few, []), []) == [0, 1, 2, 0, 1, 2, 0, 1]
    with pytest.raises(ValueError, match="3 rows for 8 ranks, and drop_last=True leaves nothing"):
        shares(loader(3, batch_size=8, drop_last=True), 8)
    with pytest.raises(ValueError, match="no rows"):
        shares(loader(0, batch_size=2), 2)


def test_loaders_that_cannot_be_split():
    own = WeightedRandomSampler([1.0] * 4, 4)
    with pytest.raises(ValueError, match="WeightedRandomSampler of its own"):
        data_share(loader(4, batch_size=2, sampler=own), 1, 0, 2)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    with pytest.raises(ValueError, match="Stream is an IterableDataset"):
        data_share(DataLoader(Stream(), batch_size=2), 1, 0, 2)
