"""What can be wrapped and how; what torch's users pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minddp.ddp import DDP_BACKENDS, BaseDDP, FlatDDP, LegacyDDP, NaiveDDP, OverlappedDDP
from minddp.launcher import launch

from .small import error_of, grads, linear, on_every_rung, x_of_rank


def test_the_names_of_the_rungs():
    assert [DDP_BACKENDS[name] for name in ("naive", "flat", "legacy", "overlapped")] == [
        NaiveDDP,
        FlatDDP,
        LegacyDDP,
        OverlappedDDP,
    ]
    assert DDP_BACKENDS["no_c10d"] is DDP_BACKENDS["legacy_ddp"] is LegacyDDP
    torchs = {DDP_BACKENDS[name] for name in ("c10d", "torch", "pytorch_ddp")}
    assert torchs == {nn.parallel.DistributedDataParallel}


def test_the_keywords_of_torch_are_accepted():
    def accepted(wrap):
        ddp = wrap(
            linear(),
            process_group=None,
            device_ids=None,
            output_device=None,
            broadcast_buffers=False,
            init_sync=True,
            find_unused_parameters=True,
            static_graph=True,
        )
        ddp(x_of_rank()).sum().backward()
        empty = wrap(linear(), device_ids=[])
        return grads(ddp)["weight"], isinstance(ddp, BaseDDP), empty.module.weight.item()

    for rung, results in on_every_rung(accepted).items():
        assert results == [(2.0, True, 1.0)] * 2, rung


@pytest.mark.parametrize("device_ids", [[0], [0, 1], ["cpu"]])
def test_device_ids_on_a_cpu(device_ids):
    with pytest.raises(ValueError, match=r"device_ids=.* but the model is on cpu: each process"):
        NaiveDDP(linear(), device_ids=device_ids)


def test_an_unknown_keyword():
    def unknown(wrap):
        return error_of(wrap, linear(), bucket_cap=25)

    for rung, (message,) in on_every_rung(unknown, world_size=1).items():
        assert message.startswith("TypeError") and "bucket_cap" in message, rung


@pytest.mark.parametrize("size", [-1, float("nan")])
def test_sizes_that_are_none(size):
    for options in (
        {"bucket_cap_mb": size},
        {"first_bucket_mb": size},
        {"bucket_cap_mb": 1, "first_bucket_mb": size},
        {"bucket_cap_mb_list": [1, size]},
    ):
        with pytest.raises(ValueError, match=f"number of MiB, 0 or more, not {size}"):
            OverlappedDDP(linear(), **options)


@pytest.mark.parametrize("wrap", [NaiveDDP, FlatDDP, LegacyDDP, OverlappedDDP])
def test_what_is_no_module(wrap):
    with pytest.raises(TypeError, match="module must be a torch.nn.Module, not list"):
        wrap([linear()])


def test_a_layer_without_a_shape_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"1.weight has no shape yet: run one batch"):
        NaiveDDP(nn.Sequential(linear(), nn.LazyLinear(3)))


def test_nothing_to_train():
    def nothing(wrap):
        return [
            error_of(wrap, model)
            for model in (nn.ReLU(), nn.Linear(1, 1).requires_grad_(False), nn.Module())
        ]

    for rung, results in on_every_rung(nothing).items():
        for found in results:
            for name, message in zip(("ReLU", "Linear", "Module"), found, strict=True):
                expected = f"RuntimeError: {name} has no parameter that requires a gradient"
                assert message.startswith(expected), rung


def test_parameters_of_every_kind_at_once_in_a_model_of_few():
    """Only empty ones; only sparse ones; an integer that is frozen; a complex number."""

    class Odd(nn.Module):
        def __init__(self, parameter):
            super().__init__()
            self.p = parameter
            self.index = nn.Parameter(torch.tensor([3]), requires_grad=False)

        def forward(self, x):
            return (self.p * x).sum().abs()

    def odd(wrap):
        empty = wrap(Odd(nn.Parameter(torch.empty(0, 2))), buffers="off")
        pair = wrap(Odd(nn.Parameter(torch.ones(1, dtype=torch.complex64))))
        rows = wrap(nn.Embedding(4, 1, sparse=True))
        for _ in range(2):
            for ddp in (empty, pair, rows):
                ddp.zero_grad()
            empty(torch.ones(2)).backward()
            pair(x_of_rank()).backward()
            rows(torch.tensor([rows.rank])).sum().backward()
        table = rows.module.weight.grad.to_dense().flatten().tolist()
        return empty.module.p.grad.shape, pair.module.p.grad.item(), table

    for rung, results in on_every_rung(odd).items():
        assert results == [((0, 2), 2 + 0j, [0.5, 0.5, 0, 0])] * 2, rung


def test_ignored_parameters_are_left_alone():
    def ignored(wrap):
        model = nn.ModuleDict({"a": linear(), "b": nn.Linear(1, 1 + torch.distributed.get_rank())})
        names = ["b.weight", "b.bias"]
        BaseDDP._set_params_and_buffers_to_ignore_for_model(model, names)
        ddp = wrap(model)
        x = x_of_rank()
        (ddp.module["a"](x).sum() + ddp.module["b"](x).sum()).backward()
        return grads(ddp)["a.weight"], ddp.module["b"].weight.grad.flatten().tolist()

    for rung, results in on_every_rung(ignored).items():
        assert results == [(2.0, [1.0]), (2.0, [3.0, 3.0])], rung


def test_outputs_of_any_shape_are_passed_on_as_they_are():
    class Nested(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.layer = linear()
            self.form = form

        def forward(self, x):
            self.output = self.form(self.layer(x))
            return self.output

    def nested():
        found = []
        for form, first in (
            (lambda y: {"y": y, "n": 3, "none": None, "deep": [(y.detach(),)]}, lambda o: o["y"]),
            (lambda y: [[y], y * 2], lambda o: o[0][0]),
            (lambda y: iter([y]), next),
        ):
            ddp = OverlappedDDP(Nested(form))
            for _ in range(2):
                ddp.zero_grad()
                output = ddp(x_of_rank())
                assert output is ddp.module.output
                first(output).sum().backward()
            found.append(grads(ddp)["layer.weight"])
        return found

    assert launch(nested) == [[2.0, 2.0, 2.0]] * 2
