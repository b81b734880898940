"""What comes back from the ranks."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minddp.launcher import RankFailed, launch


def test_values_by_rank():
    def value() -> dict[str, object]:
        rank = dist.get_rank()
        return {"rank": rank, "nested": [(rank, None), {"set": {rank}}], "text": "x" * rank}

    results = launch(value, world_size=3)
    assert isinstance(results, list)
    assert results == [
        {"rank": k, "nested": [(k, None), {"set": {k}}], "text": "x" * k} for k in range(3)
    ]
    assert launch(lambda: None) == [None, None]
    assert results.recordings is None


def test_tensors_are_independent_copies_on_the_cpu():
    def tensors() -> dict[str, torch.Tensor]:
        whole = torch.arange(1_000_000.0)
        same = torch.ones(2)
        return {
            "view": whole[:3],
            "transposed": torch.arange(6).reshape(2, 3).T,
            "half": torch.ones(2, dtype=torch.bfloat16),
            "flags": torch.tensor([True, False]),
            "complex": torch.tensor([1 + 2j]).conj(),
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(5),
            "sparse": torch.eye(2).to_sparse(),
            "same": same,
            "again": same,
        }

    first, second = launch(tensors, backend=None)
    assert first["view"].tolist() == [0, 1, 2]
    assert first["view"].untyped_storage().nbytes() == 12  # not the million it was cut from
    assert first["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert first["half"].dtype == torch.bfloat16
    assert first["flags"].tolist() == [True, False]
    assert first["complex"].resolve_conj().tolist() == [1 - 2j]
    assert first["empty"].shape == (0, 3)
    assert first["scalar"].item() == 5
    assert first["sparse"].to_dense().tolist() == torch.eye(2).tolist()
    assert first["same"] is first["again"]
    first["view"].add_(1)
    assert second["view"].tolist() == [0, 1, 2]


def test_requires_grad_stays_with_leaves_and_graphs_stay_behind():
    def tensors() -> tuple[object, ...]:
        model = nn.Linear(2, 1)
        model.weight.requires_grad_(False)
        leaf = torch.ones(2, requires_grad=True)
        loss = model(leaf).sum()
        loss.backward()
        return leaf, loss, model, model.bias

    leaf, loss, model, bias = launch(tensors, backend=None)[1]
    assert leaf.requires_grad and leaf.is_leaf
    assert not loss.requires_grad
    assert isinstance(model.bias, nn.Parameter) and model.bias.requires_grad
    assert not model.weight.requires_grad
    assert bias is model.bias
    assert model(leaf).item() == pytest.approx(loss.item())


def test_a_hundred_megabytes():
    def big() -> torch.Tensor:
        return torch.full((25_000_000,), float(dist.get_rank()))

    results = launch(big)
    assert [x.numel() for x in results] == [25_000_000] * 2
    assert [x.sum().item() for x in results] == [0, 25e6]


def test_arguments_are_copies_too():
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()

    def spoil(net: nn.Module, shared: torch.Tensor) -> float:
        net.weight.data.zero_()
        shared.add_(1)
        dist.barrier()
        return shared.sum().item()

    shared = torch.zeros(3).share_memory_()
    assert launch(spoil, model, shared) == [3.0, 3.0]
    assert torch.equal(model.weight, before)
    assert shared.sum() == 0


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: (i for i in range(3)), "result is of type generator"),
        (lambda: {"ok": 1, "bad": [threading.Lock()]}, "result['bad'][0] is of type _thread.lock"),
    ],
)
def test_a_result_that_cannot_be_sent_names_the_rank_and_the_type(make, kind):
    def give() -> object:
        return make() if dist.get_rank() == 1 else None

    with pytest.raises(RankFailed) as caught:
        launch(give)
    assert caught.value.rank == 1
    assert "rank 1 failed: TypeError: the function returned a" in caught.value.summary
    assert kind in caught.value.summary
    assert "File" not in caught.value.traceback


def test_a_class_made_in_the_rank_comes_back():
    def make() -> object:
        class Local:
            def __init__(self) -> None:
                self.x = torch.ones(1)

        return Local()

    assert launch(make, backend=None)[0].x.item() == 1
