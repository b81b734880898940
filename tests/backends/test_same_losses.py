"""One training function, the same losses whatever the backend and the number of ranks."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from minddp.backends import DummyBackend, TorchBackend
from minddp.launcher import launch


def train(backend_class, **settings):
    with backend_class(**settings) as backend, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*one rank")
        torch.manual_seed(0)
        rows = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = SGD(model.parameters(), lr=0.1)
        twin, optimizer, data, scheduler = backend.distribute(
            model=model,
            optimizer=optimizer,
            training_data=DataLoader(rows, batch_size=4, shuffle=True),
            lr_scheduler=StepLR(optimizer, 2, gamma=0.5),
        )
        losses = []
        for epoch in range(4):
            data.sampler.set_epoch(epoch)
            for x, y in data:
                loss = nn.functional.mse_loss(twin(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(backend.average_all(loss).item())
            scheduler.step()
        return losses


@pytest.mark.parametrize(
    ("world_size", "ddp_backend"), [(1, "flat"), (2, "overlapped"), (4, "c10d")]
)
def test_twenty_steps(world_size, ddp_backend):
    expected = train(DummyBackend)
    assert len(expected) == 20 and expected[-1] < expected[0]
    for losses in launch(train, TorchBackend, world_size=world_size, ddp_backend=ddp_backend):
        assert losses == pytest.approx(expected, abs=1e-4)
