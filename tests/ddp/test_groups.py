"""Which ranks take part: some, one, all; and the debug mode, which sees ranks that disagree."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist

from minddp.ddp import NaiveDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import Layers, calls, error_of, grads, linear, on_every_rung, x_of_rank


def test_two_ranks_of_three():
    def some(wrap):
        found = []
        for members in ([0, 2], [1, 2]):
            group = dist.new_group(members)
            layer = linear()
            layer.weight.data += dist.get_rank()
            if dist.get_rank() not in members:
                found.append(error_of(wrap, layer, group))
                continue
            ddp = wrap(layer, group, buffers="average")
            for _ in range(2):
                ddp.zero_grad()
                ddp(x_of_rank()).sum().backward()
            found.append((ddp.rank, ddp.world_size, layer.weight.item(), grads(ddp)["weight"]))
        return found

    for rung, (first, second, third) in on_every_rung(some, world_size=3).items():
        assert first[0] == (0, 2, 1.0, 3.0), rung
        assert second[1] == (0, 2, 2.0, 4.0), rung
        assert third == [(1, 2, 1.0, 3.0), (1, 2, 2.0, 4.0)], rung
        for rank, message in ((1, second[0]), (0, first[1])):
            assert message.startswith(
                f"ValueError: rank {rank} is not a member of this process group"
            )


def test_a_group_given_as_a_mesh():
    def meshed(wrap):
        mesh = dist.init_device_mesh("cpu", (2,))
        ddp = wrap(linear(), device_mesh=mesh)
        ddp(x_of_rank()).sum().backward()
        both = error_of(wrap, linear(), mesh.get_group(), device_mesh=mesh)
        two = error_of(wrap, linear(), device_mesh=dist.init_device_mesh("cpu", (1, 2)))
        return grads(ddp)["weight"], both, two[:40]

    for rung, results in on_every_rung(meshed).items():
        expected = (
            2.0,
            "RuntimeError: Cannot specify both process_group and device_mesh arguments.",
            "RuntimeError: Only 1D device mesh is sup",
        )
        assert results == [expected] * 2, rung


def test_a_world_of_one():
    def alone(wrap):
        ddp = wrap(Layers(), error_on_unused=False, debug=True)
        found = []
        for _ in range(2):
            ddp.zero_grad()
            with ddp.no_sync():
                ddp(3 * x_of_rank(), "a").sum().backward()
            with ddp.join():
                ddp(x_of_rank(), "a").sum().backward()
            found.append(grads(ddp))
        return found

    for rung, results in on_every_rung(alone, world_size=1).items():
        assert results == [[{"a.weight": 4.0, "b.weight": None}] * 2], rung


def test_what_is_no_group():
    message = error_of(NaiveDDP, linear())
    assert message.startswith("RuntimeError: no process group: call torch.distributed.init_process")

    def wrong_groups():
        return [error_of(NaiveDDP, linear(), group) for group in ([0], "gloo")]

    for a_list, text in launch(wrong_groups, world_size=1):
        assert (
            "TypeError: process_group must be a torch.distributed.ProcessGroup, not [0]" in a_list
        )
        assert "device_ids is a keyword argument here" in a_list
        assert text.startswith("TypeError") and "'gloo'" in text


# ---------------------------------------------------------------------- debug mode


def test_debug_mode_raises_on_both_ranks_and_names_what_each_is_at():
    def at_different_models():
        ddps = [NaiveDDP(linear()), NaiveDDP(linear())]
        return error_of(ddps[dist.get_rank()](x_of_rank()).sum().backward)

    for message in launch(at_different_models, env={"MINDDP_DEBUG": "1"}):
        assert message.startswith("RuntimeError")
        assert "rank 0 and rank 1 have a different next collective" in message
        assert "rank 0 has [wrapped model 1, step 1: all_reduce of 2 float32]" in message
        assert "rank 1 has [wrapped model 2, step 1: all_reduce of 2 float32]" in message


def test_debug_mode_on_every_rung():
    def checked(wrap):
        ddp = wrap(Layers("abc"), debug=True)
        found = []
        for which in ("ab", "ab", "ab"):
            ddp.zero_grad()
            ddp(x_of_rank(), which[ddp.rank]).sum().backward()
            found.append(grads(ddp))
        ddp.step += ddp.rank  # one rank thinks that it is ahead
        message = error_of(ddp(x_of_rank(), "ab").sum().backward)
        return found, message

    step = {"a.weight": 0.5, "b.weight": 1.5, "c.weight": None}
    for rung, results in on_every_rung(checked).items():
        for found, message in results:
            assert found == [step] * 3, rung
            assert "different next collective" in message, rung
            assert "step 4" in message and "step 5" in message, rung


@pytest.mark.parametrize(("value", "debug"), [("0", False), ("", False), ("1", True)])
def test_the_switch_of_debug_mode(value, debug):
    def extra_calls():
        ddp = NaiveDDP(linear())
        with record() as recording:
            ddp(x_of_rank()).sum().backward()
        return ddp.debug, len(calls(recording)) > 1, NaiveDDP(linear(), debug=not ddp.debug).debug

    results = launch(extra_calls, world_size=1, env={"MINDDP_DEBUG": value})
    assert results == [(debug, debug, not debug)]


def test_a_gradient_that_has_a_graph_warns():
    def with_graph(wrap):
        ddp = wrap(linear())
        found = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                ddp.zero_grad()
                (ddp(x_of_rank()) ** 2).sum().backward(create_graph=True)
                found.append(grads(ddp)["weight"])
        ours = [str(w.message) for w in caught if "create_graph=True" in str(w.message)]
        return found, any("averaged gradients are constants" in text for text in ours)

    for rung, results in on_every_rung(with_graph).items():
        assert results == [([10.0, 10.0], True)] * 2, rung  # of w²x²: 2 and 18


def test_gradients_in_half_precision_do_not_overflow_in_the_sum():
    def large(wrap):
        found = []
        for dtype in (torch.float16, torch.bfloat16):
            ddp = wrap(linear(dtype))
            for _ in range(2):
                ddp.zero_grad()
                (ddp(torch.ones(1, 1, dtype=dtype)) * 60000).sum().backward()
                found.append(ddp.module.weight.grad.item())
        return found

    for rung, results in on_every_rung(large).items():
        for found in results:
            assert [round(value, -3) for value in found] == [60000.0] * 4, rung
