"""Wrappers that end, are made again, copied and pickled."""

from __future__ import annotations

import copy
import io
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minddp.ddp import OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import EACH_ALONE, Layers, calls, error_of, grads, linear, on_every_rung, x_of_rank


def test_hooks_end_with_their_wrapper():
    def ended(wrap):
        layer = linear()
        ddp = wrap(layer)
        ddp(x_of_rank()).sum().backward()
        hooks = len(layer.weight._post_accumulate_grad_hooks)
        del ddp
        layer.zero_grad()
        with record() as recording:
            layer(x_of_rank()).sum().backward()
        return hooks, len(layer.weight._post_accumulate_grad_hooks), calls(recording), grads(layer)

    for rung, results in on_every_rung(ended).items():
        locals_ = [{"weight": 1.0}, {"weight": 3.0}]
        assert results == [(1, 0, [], local) for local in locals_], rung


def test_a_second_wrapper_in_the_place_of_the_first():
    def again(wrap):
        layer = linear()
        for _ in range(3):
            ddp = wrap(layer)
            ddp.zero_grad()
            with record() as recording:
                ddp(x_of_rank()).sum().backward()
        return grads(ddp)["weight"], len(recording.collectives("all_reduce"))

    for rung, results in on_every_rung(again).items():
        assert results == [(2.0, 1)] * 2, rung


def test_a_temporary_wrapper_lives_as_long_as_its_graph():
    def temporary(wrap):
        layer = linear()
        wrap(layer)(x_of_rank()).sum().backward()
        return grads(layer)["weight"], len(layer.weight._post_accumulate_grad_hooks)

    for rung, results in on_every_rung(temporary).items():
        assert results == [(2.0, 0)] * 2, rung


def test_a_wrapper_in_a_wrapper():
    def nested(wrap):
        ddp = wrap(wrap(linear()))
        found = []
        for _ in range(3):
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp.module)["weight"])
        return found

    for rung, results in on_every_rung(nested).items():
        assert results == [[2.0] * 3] * 2, rung


def copies_of(ddp):
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return [
        copy.deepcopy(ddp),
        pickle.loads(pickle.dumps(ddp)),
        torch.load(file, weights_only=False),
    ]


def test_copies_and_pickles_average_by_themselves():
    def copied(wrap):
        ddp = wrap(Layers(), buffers="off")
        found = []
        for _ in range(2):
            ddp.zero_grad()
            ddp(x_of_rank(), "a").sum().backward()
            with ddp.no_sync():  # the state of the moment is not copied
                others = copies_of(ddp)
            for other in others:
                assert type(other) is type(ddp)
                assert other.buffers_mode == "off"
                assert not {*map(id, other.parameters())} & {*map(id, ddp.parameters())}
                for _ in range(2):
                    other.zero_grad()
                    with record() as recording:
                        other(x_of_rank(), "b").sum().backward()
                found.append((grads(other), len(recording.collectives("all_reduce")) <= 2))
            found.append((grads(ddp), True))
        return found

    one, other = {"a.weight": 2.0, "b.weight": None}, {"a.weight": None, "b.weight": 2.0}
    for rung, results in on_every_rung(copied).items():
        assert results == [([(other, True)] * 3 + [(one, True)]) * 2] * 2, rung


def test_a_copy_keeps_its_settings_and_hook():
    def settings():
        ddp = OverlappedDDP(
            nn.Sequential(linear(), linear()),
            comm_hook=(None, allreduce_hook),
            gradient_as_bucket_view=True,
            error_on_unused=True,
            **EACH_ALONE,
        )
        found = []
        for other in copies_of(ddp):
            for _ in range(2):
                other.zero_grad()
                other(x_of_rank()).sum().backward()
            found.append(
                (
                    other.comm_hook[1] is allreduce_hook,
                    other.gradient_as_bucket_view,
                    other.error_on_unused,
                    len(other._buckets),
                    grads(other),
                )
            )
        return found

    expected = (True, True, True, 2, {"0.weight": 2.0, "1.weight": 2.0})
    assert launch(settings) == [[expected] * 3] * 2


def test_a_sub_group_cannot_be_copied_nor_a_pickle_loaded_without_a_group():
    def refused(wrap):
        ddp = wrap(linear(), dist.new_group([0, 1]))
        return [error_of(copy.deepcopy, ddp), error_of(pickle.dumps, ddp)]

    def without_a_group():
        pickled = pickle.dumps(OverlappedDDP(linear()))
        dist.destroy_process_group()
        return error_of(pickle.loads, pickled)

    for rung, results in on_every_rung(refused).items():
        for message in (*results[0], *results[1]):
            assert message.startswith("TypeError: cannot copy or pickle a "), rung
            assert "DDP on a sub-group" in message, rung
    for message in launch(without_a_group):
        assert message.startswith(
            "RuntimeError: a OverlappedDDP needs an initialised process group"
        )
