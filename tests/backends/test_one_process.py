"""The dummy backend: a script without a launcher, and the checks that every backend shares."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from minddp.backends import DummyBackend

from .small import error_of


@pytest.fixture
def backend():
    with DummyBackend() as backend:
        yield backend


def test_places_and_agreement(backend):
    assert (backend.get_rank(), backend.get_local_rank(), backend.get_world_size()) == (0, 0, 1)
    assert backend.is_root_worker() and backend.is_local_root_worker()
    backend.barrier("save")
    backend.local_barrier()
    assert backend.any_rank(True) is True and backend.any_rank(False) is False
    assert backend.all_ranks(torch.tensor(True)) is True and backend.all_ranks(False) is False
    assert backend.from_root({"a": 1}) == {"a": 1}
    with backend.root_first():
        pass
    with pytest.raises(KeyError), backend.root_first():
        raise KeyError
    assert backend.check_batch_size(3) == 3
    assert DummyBackend.has_backend()


AVERAGES = {
    "int64": (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
    "bool": (torch.tensor(True), torch.tensor(1.0)),
    "float16": (torch.tensor([1.5]).half(), torch.tensor([1.5]).half()),
    "float64": (torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64)),
    "transposed": (torch.arange(6.0).view(2, 3).t(), torch.arange(6.0).view(2, 3).t()),
    "python int": (3, torch.tensor(3.0)),
    "python bool": (True, torch.tensor(1.0)),
    "python float": (0.5, torch.tensor(0.5)),
}


@pytest.mark.parametrize("case", AVERAGES)
def test_averages_of_one(backend, case):
    value, expected = AVERAGES[case]
    found = backend.average_all(value)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_the_average_is_a_copy_without_a_graph(backend):
    weight = torch.ones(2, requires_grad=True)
    loss = weight * 2
    average = backend.average_all(loss)
    assert not average.requires_grad and average.data_ptr() != loss.data_ptr()
    with pytest.raises(TypeError, match="dense tensor or a number, not 'x'"):
        backend.average_all("x")
    with pytest.raises(ValueError, match="no process groups"):
        backend.average_all(1.0, group=object())


def test_distribute_returns_what_it_got_and_a_sampler_for_the_data(backend):
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1)
    data = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, shuffle=True)
    found = backend.distribute(
        model=model, optimizer=optimizer, training_data=data, lr_scheduler=scheduler
    )
    assert found[0] is model and found[1] is optimizer and found[3] is scheduler
    found[2].sampler.set_epoch(1)
    assert sorted(torch.cat([batch[0] for batch in found[2]]).tolist()) == [0, 1, 2, 3]
    assert backend.distribute(model=model) == (model, None, None, None)


def test_parts_that_do_not_belong_together(backend):
    model, other = nn.Linear(1, 1), nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    stranger = StepLR(SGD(other.parameters(), lr=0.1), 1)
    rows = TensorDataset(torch.arange(4.0))
    batches = DataLoader(rows, batch_sampler=BatchSampler(SequentialSampler(rows), 2, False))
    cases = [
        ({"model": print}, "TypeError: model must be a torch.nn.Module"),
        ({"model": model, "optimizer": "sgd"}, "TypeError: optimizer must be"),
        ({"model": other, "optimizer": optimizer}, "ValueError: the optimizer holds 2 tensors"),
        ({"model": model, "optimizer": optimizer, "lr_scheduler": stranger}, "another optimizer"),
        ({"model": model, "training_data": rows}, "must be a DataLoader with the global batch"),
        ({"model": model, "training_data": batches}, "batch_sampler of its own"),
        ({"model": model, "optimiser": optimizer}, "TypeError"),
    ]
    for parts, message in cases:
        assert message in error_of(backend.distribute, **parts)
