"""Hooks in place of the all-reduce: torch's own, our own, and those that are none."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from minddp.ddp import OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import EACH_ALONE, Layers, Weights, error_of, grads, linear, x_of_rank


def test_the_hooks_of_torch_give_the_average():
    def compressed(hook, **options):
        ddp = OverlappedDDP(Layers(), **options)
        ddp.register_comm_hook(None, hook)
        found = []
        for _ in range(3):
            ddp.zero_grad()
            with record() as recording:
                ddp(x_of_rank(), "ab").sum().backward()
            dtypes = [e.dtype for e in recording.collectives("all_reduce", phase="backward")]
            found.append(grads(ddp))
        return dtypes, found

    def all_hooks():
        return [
            compressed(hook, **options)
            for hook in (
                default_hooks.allreduce_hook,
                default_hooks.fp16_compress_hook,
                default_hooks.bf16_compress_hook,
            )
            for options in (EACH_ALONE, {"gradient_as_bucket_view": True})
        ]

    for results in launch(all_hooks):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for buckets in (2, 1):
                dtypes, found = results.pop(0)
                assert dtypes[0] == dtype
                assert len(set(dtypes)) == 1 <= len(dtypes) <= buckets
                assert found == [{"a.weight": 2.0, "b.weight": 2.0}] * 3


def test_powersgd_with_several_buckets():
    """A batch of one gives each layer a gradient of rank 1, so the average over two ranks has rank
    2, and an approximation of rank 2 is exact."""

    def train():
        layers = [
            nn.Sequential(nn.Linear(16, 16, dtype=torch.float64), nn.Tanh()) for _ in range(3)
        ]
        model = nn.Sequential(*layers)
        ddp = OverlappedDDP(model, **EACH_ALONE)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, warm_start=False
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        batches = torch.randn(5, 2, 16, dtype=torch.float64)  # the same on both ranks
        errors = []
        for batch in batches:
            ddp.zero_grad()
            (ddp(batch[dist.get_rank()]) ** 2).mean().backward()
            right = torch.autograd.grad((model(batch) ** 2).mean(), list(model.parameters()))
            pairs = zip(model.parameters(), right, strict=True)
            errors.append(max((p.grad - r).abs().max().item() / r.abs().max() for p, r in pairs))
        return (
            state.compression_stats()[0],
            max(errors).item(),
            [p.grad for p in model.parameters()],
        )

    first, second = launch(train)
    for rate, error, _ in (first, second):
        assert rate > 1.5  # two small matrices were sent in place of a large one
        assert error < 1e-9
    assert all(torch.equal(*pair) for pair in zip(first[2], second[2], strict=True))


def test_a_hook_divides_by_itself_and_sees_gradients_only():
    def seen_by_a_hook():
        seen = []

        def hook(state, bucket):
            shapes = [tuple(gradient.shape) for gradient in bucket.gradients()]
            names = [state[parameter] for parameter in bucket.parameters()]
            seen.append(
                (bucket.index(), bucket.is_last(), tuple(bucket.buffer().shape), shapes, names)
            )
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0] * 10)

        model = Weights([2, 3])
        names = {parameter: name for name, parameter in model.named_parameters()}
        ddp = OverlappedDDP(model, comm_hook=(names, hook), **EACH_ALONE)
        for _ in range(2):
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()
        return seen, [weight.grad.sum().round().item() for weight in model.weights]

    # 1 + 3 is summed, not averaged, and 10 times that is what the hook gave back.
    buckets = [(0, False, (3,), [(3,)], ["weights.1"]), (1, True, (2,), [(2,)], ["weights.0"])]
    assert launch(seen_by_a_hook) == [(buckets * 2, [40.0, 40.0])] * 2


def test_unused_parameters_under_a_hook():
    def unequal():
        ddp = OverlappedDDP(Layers("abc"), comm_hook=default_hooks.allreduce_hook, **EACH_ALONE)
        found = []
        for _ in range(3):
            ddp.zero_grad()
            ddp(x_of_rank(), "ab"[dist.get_rank()]).sum().backward()
            found.append(grads(ddp))
        return found

    assert launch(unequal) == [[{"a.weight": 0.5, "b.weight": 1.5, "c.weight": None}] * 3] * 2


def test_debug_mode_compares_between_hooks_not_beside_them():
    """A hook may be called from a callback, when the one before is done: at another moment on each
    rank. A comparison that went out in between would meet it on the other rank."""

    def unequal():
        ddp = OverlappedDDP(
            Layers("abcdef"), comm_hook=default_hooks.allreduce_hook, debug=True, **EACH_ALONE
        )
        for step in range(10):
            ddp.zero_grad()
            ddp(x_of_rank(), "abcdef"[step % 3 :: 2 - dist.get_rank()]).sum().backward()
        return grads(ddp)

    first, second = launch(unequal)
    both, only_rank_1 = (2.0, 1.5)
    assert first == second == {f"{n}.weight": both if n in "ace" else only_rank_1 for n in "abcdef"}


def test_what_is_no_hook_is_refused():
    def refused():
        def wrong_bucket(state, bucket: int):
            pass

        def wrong_return(state, bucket: dist.GradBucket) -> torch.Tensor:
            pass

        def right(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            pass

        ddp = OverlappedDDP(linear())
        messages = [
            error_of(ddp.register_comm_hook, None, h) for h in ({}, wrong_bucket, wrong_return)
        ]
        messages.append(error_of(OverlappedDDP, linear(), comm_hook="allreduce"))
        ddp.register_comm_hook(None, right)
        return [*messages, error_of(ddp.register_comm_hook, None, right)]

    for not_callable, bucket, returns, text, second in launch(refused):
        assert not_callable.startswith("TypeError") and "must be callable" in not_callable
        assert bucket.startswith("ValueError") and "bucket annotation should be" in bucket
        assert "wrong_bucket" in bucket
        assert returns.startswith("ValueError") and "return annotation should be" in returns
        assert text.startswith("TypeError") and "'allreduce'" in text
        assert second.startswith("RuntimeError") and "can be called once" in second


def test_a_hook_that_fails_raises_its_error_and_leaves_nothing_behind():
    def failing(fail):
        calls = []

        def hook(state, bucket):
            calls.append(bucket.index())
            if len(calls) <= 2:
                return fail()
            return default_hooks.allreduce_hook(None, bucket)

        ddp = OverlappedDDP(Layers(), comm_hook=hook, **EACH_ALONE)
        kept = []  # what keeps an exception, such as a debugger or a notebook, changes nothing
        try:
            ddp(x_of_rank(), "ab").sum().backward()
        except Exception as error:
            kept.append(error)
        found = []
        for _ in range(3):
            ddp.zero_grad()
            ddp(x_of_rank(), "ab").sum().backward()
            found.append(grads(ddp))
        return repr(kept), len(calls), found

    def both():
        def raises():
            raise KeyError("lost in the hook")

        return failing(raises), failing(lambda: "soon")

    expected = [{"a.weight": 2.0, "b.weight": 2.0}] * 3
    for raised, not_a_future in launch(both):
        assert "KeyError('lost in the hook')" in raised[0]
        assert "must return a torch.futures.Future of one tensor, not str" in not_a_future[0]
        assert raised[1:] == not_a_future[1:] == (2 + 3 * 2, expected)


def test_a_hook_fails_later_in_its_future():
    def late():
        failures = [True]

        def hook(state, bucket):
            def check(done):
                if failures:
                    failures.clear()
                    raise ArithmeticError("too late")
                return done.value()[0] / 2

            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(check)

        ddp = OverlappedDDP(Layers(), comm_hook=hook)
        message = error_of(ddp(x_of_rank(), "ab").sum().backward)
        ddp.zero_grad()
        ddp(x_of_rank(), "ab").sum().backward()
        return message, grads(ddp)

    for message, found in launch(late):
        assert "too late" in message
        assert found == {"a.weight": 2.0, "b.weight": 2.0}
