"""TorchBackend on real ranks, in the group that the launcher made."""

import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from minddp.backends import TorchBackend, waiting
from minddp.factory import DistributedModel
from minddp.launcher import launch

from .small import error_of

BY_RANK = {
    "int64": lambda r: torch.tensor(r + 1),
    "int64 vector": lambda r: torch.tensor([1 + r, 4 + 2 * r]),
    "uint8": lambda r: torch.tensor([255], dtype=torch.uint8),
    "bool": lambda r: torch.tensor(r == 0),
    "0-dim": lambda r: torch.tensor(3.0 + r),
    "float16": lambda r: torch.tensor([40000.0 + 16 * r]).half(),
    "float64": lambda r: torch.tensor([1e300 * (r + 1)], dtype=torch.float64),
    "transposed": lambda r: (torch.arange(6.0).view(2, 3) * (1 + r)).t(),
    "empty": lambda r: torch.empty(0),
    "python int": lambda r: r + 1,
    "python bool": lambda r: r == 0,
}
MEANS = {
    "int64": torch.tensor(1.5),
    "int64 vector": torch.tensor([1.5, 5.0]),
    "uint8": torch.tensor([255.0]),
    "bool": torch.tensor(0.5),
    "0-dim": torch.tensor(3.5),
    "float16": torch.tensor([40008.0]).half(),
    "float64": torch.tensor([1.5e300], dtype=torch.float64),
    "transposed": (torch.arange(6.0).view(2, 3) * 1.5).t(),
    "empty": torch.empty(0),
    "python int": torch.tensor(1.5),
    "python bool": torch.tensor(0.5),
}


def averages():
    found = {}
    with TorchBackend() as backend:
        for case, make in BY_RANK.items():
            value = make(backend.get_rank())
            found[case] = backend.average_all(value)
            same = make(backend.get_rank())
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(same)), case
        weight = torch.ones(2, requires_grad=True)
        found["graph"] = backend.average_all(weight * 2).requires_grad
    return found


def test_averages_are_right_float_and_the_same_on_all_ranks():
    for found in launch(averages):
        assert found.pop("graph") is False
        for case, mean in MEANS.items():
            assert found[case].dtype == mean.dtype, case
            assert torch.equal(found[case], mean), (case, found[case])


def averages_of_a_group():
    outer = dist.new_group([0, 2])
    with TorchBackend() as backend:
        return [
            backend.average_all(float(backend.get_rank())).item(),
            backend.average_all(backend.get_rank() * 2, outer).item()
            if backend.get_rank() != 1
            else error_of(backend.average_all, 1.0, outer),
        ]


def test_averages_over_a_group():
    first, second, third = launch(averages_of_a_group, world_size=3)
    assert first == third == [1.0, 2.0]
    assert second[0] == 1.0
    assert "rank 1 is not a member of the group" in second[1]


def agreements():
    with TorchBackend() as backend:
        root = backend.is_root_worker()
        return {
            "place": (backend.get_rank(), backend.get_world_size(), backend.get_local_rank()),
            "any": [backend.any_rank(root), backend.any_rank(False)],
            "all": [backend.all_ranks(root), backend.all_ranks(torch.tensor(True))],
            "root's": backend.from_root({"rank": backend.get_rank()}),
            "cannot be sent": error_of(backend.from_root, lambda: 0),
            "afterwards": backend.from_root(backend.get_rank()),
            "rows": backend.check_batch_size(6),
            "uneven": error_of(backend.check_batch_size, 5),
        }


def test_agreements():
    for rank, found in enumerate(launch(agreements)):
        assert found["place"] == (rank, 2, rank)
        assert found["any"] == [True, False]
        assert found["all"] == [False, True]
        assert found["root's"] == {"rank": 0}
        assert "RuntimeError: the root's object cannot be sent" in found["cannot be sent"]
        assert found["afterwards"] == 0
        assert found["rows"] == 3
        assert "global batch of 5 cannot be split evenly over 2 ranks" in found["uneven"]


def one_rank_decides():
    with TorchBackend() as backend:
        for step in range(10):
            if backend.any_rank(backend.is_root_worker() and step == 3):
                break
        return step


def test_an_early_stop_of_one_rank_stops_all():
    assert launch(one_rank_decides) == [3, 3]


def read_after_write(folder):
    path = Path(folder) / "data"
    with TorchBackend(timeout=30) as backend:
        with backend.root_first():
            if backend.is_root_worker():
                path.write_text("from the root")
            text = path.read_text()
        try:
            with backend.root_first():
                raise KeyError("lost")
        except (KeyError, RuntimeError) as error:
            return text, f"{type(error).__name__}: {error}", backend.any_rank(True)


def test_root_first_lets_the_root_write_before_others_read_and_releases_them_on_an_error(tmp_path):
    first, second = launch(read_after_write, str(tmp_path))
    assert first == ("from the root", "KeyError: 'lost'", True)
    assert second[0] == "from the root"
    assert second[1] == "RuntimeError: the root failed inside root_first(): KeyError: 'lost'"


def barriers():
    found = []
    with TorchBackend(timeout=30) as backend:
        root = backend.is_root_worker()
        backend.barrier("start")
        found.append(error_of(backend.barrier, "save" if root else "epoch end"))
        backend.barrier("both")
        if root:
            found.append(error_of(backend.barrier, "alone", timeout=0.3))
        backend.from_root()  # rank 1 comes too late for the barrier
        if not root:
            backend.barrier("alone")
        backend.barrier("end")
        backend.local_barrier("end")
    return found


def test_a_barrier_says_who_waits_in_which():
    first, second = launch(barriers)
    for found in (first, second):
        for text in ("rank 0 is in barrier 'save' (", "rank 1 is in barrier 'epoch end' ("):
            assert text in found[0]
    assert "small.py" in first[0]  # the line that called it
    assert "rank 0 is in barrier 'alone' (" in first[1]
    assert "rank 1 has not come since barrier 'both' (test_ranks.py:" in first[1]
    assert first[1].startswith("TimeoutError")


def late_barrier():
    waiting.SECONDS_BEFORE_A_WARNING = 0.1
    with TorchBackend() as backend:
        if not backend.is_root_worker():
            return backend.from_root()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            error = error_of(backend.barrier, "never", timeout=0.3)
        backend.from_root()
        return error, [str(warning.message) for warning in caught]


def leaves_early():
    backend = TorchBackend().initialize()
    if backend.is_root_worker():
        backend.from_root()
        return error_of(backend.barrier, "last", timeout=1.0)
    backend.from_root()
    backend.shutdown()


def test_ranks_that_never_came_or_have_left_are_told_apart():
    error, [warned] = launch(late_barrier)[0]
    for text in (error, warned):
        assert "rank 0 is in barrier 'never' (" in text
        assert "rank 1 has not come to any barrier yet" in text
    assert warned.endswith("waiting up to 0.3 s")
    assert "rank 1 has shut down" in launch(leaves_early)[0]


def one_host_each():
    os.environ["LOCAL_RANK"] = "0"
    with TorchBackend() as backend:
        if backend.is_root_worker():
            backend.local_barrier("of this host alone", timeout=10)
        return backend.is_root_worker(), backend.is_local_root_worker(), backend.get_local_rank()


def test_two_hosts_have_one_root_and_two_local_roots():
    assert launch(one_host_each) == [(True, True, 0), (False, True, 0)]


class Counting(nn.Linear):
    """One weight of 1, and buffers that are no floats."""

    def __init__(self):
        super().__init__(1, 1, bias=False)
        nn.init.ones_(self.weight)
        self.register_buffer("mask", torch.tensor([True, False]) ^ (dist.get_rank() == 1))
        self.register_buffer("count", torch.tensor(2**40 + dist.get_rank()))


def train(**settings):
    with TorchBackend(**settings) as backend:
        model = Counting()
        optimizer = SGD(model.parameters(), lr=0.1)
        data = DataLoader(TensorDataset(torch.tensor([[1.0], [3.0]])), batch_size=2)
        scheduler = StepLR(optimizer, 1)
        twin, its_optimizer, its_data, its_scheduler = backend.distribute(
            model=model, optimizer=optimizer, training_data=data, lr_scheduler=scheduler
        )
        assert its_optimizer is optimizer and its_scheduler is scheduler
        [(rows,)] = list(its_data)
        twin(rows).sum().backward()
        gradient = model.weight.grad.item()
        its_optimizer.step()
        return {
            "twin": (type(twin) is DistributedModel, twin.module is model, twin.ddp_backend),
            "rows": rows.tolist(),
            "gradient": gradient,
            "weight": round(model.weight.item(), 6),
            "buffers": (model.mask.tolist(), model.count.item(), str(model.count.dtype)),
        }


@pytest.mark.parametrize("ddp_backend", ["overlapped", "legacy", "c10d"])
def test_distribute(ddp_backend):
    results = launch(train, ddp_backend=ddp_backend)
    for rank, found in enumerate(results):
        assert found["twin"] == (True, True, ddp_backend)
        assert found["rows"] == [[1.0 + 2 * rank]]
        assert found["gradient"] == 2.0
        assert found["weight"] == 0.8
        assert found["buffers"] == ([True, False], 2**40, "torch.int64")


def take_up():
    found = [error_of(TorchBackend("nccl").initialize)]
    os.environ["RANK"] = str(dist.get_rank() + 1)
    found.append(error_of(TorchBackend().initialize))
    os.environ["RANK"] = str(dist.get_rank())
    first, second = TorchBackend(), TorchBackend("gloo")
    with first, second:
        second.barrier()
        found.append(first.average_all(second.get_rank()).item())
    found.append(dist.is_initialized())
    with first:
        found.append(first.any_rank(True))
    return found


def test_a_group_that_is_there_is_taken_up_and_left_as_it_was():
    for rank, found in enumerate(launch(take_up)):
        assert "nccl was asked for, but the group uses gloo" in found[0]
        assert f"RANK={rank + 1}, but the group says {rank}" in found[1]
        assert found[2:] == [0.5, True, True]
