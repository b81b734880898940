"""A backward that fails half-way, on all ranks, leaves nothing behind for the next."""

from __future__ import annotations

from torch import nn

from .small import Hit, Wall, grads, linear, on_every_rung, x_of_rank


class Walled(nn.Module):
    """y = c(wall(b(a(x)))): backward finishes c, then runs into the wall."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = linear(), linear(), linear()

    def forward(self, x):
        return self.c(Wall.apply(self.b(self.a(x))))


def run_into_the_wall(ddp):
    """Returns the exception, which holds the frames it went through."""
    Wall.up = True
    try:
        ddp(x_of_rank()).sum().backward()
    except Hit as hit:
        return hit
    finally:
        Wall.up = False
    raise AssertionError("the wall was not hit")


def test_in_the_first_backward_and_in_later_ones():
    def fail_and_go_on(wrap):
        ddp = wrap(Walled())
        kept, found = [], []
        for _ in range(3):
            kept.append(run_into_the_wall(ddp))  # as a notebook keeps the last exception
            for _ in range(2):
                ddp.zero_grad()
                ddp(x_of_rank()).sum().backward()
                found.append(grads(ddp))
        return len(kept), found

    expected = {"a.weight": 2.0, "b.weight": 2.0, "c.weight": 2.0}
    for rung, results in on_every_rung(fail_and_go_on).items():
        assert results == [(3, [expected] * 6)] * 2, rung


def test_inside_no_sync():
    def fail_inside(wrap):
        ddp = wrap(Walled())
        try:
            with ddp.no_sync():
                kept = run_into_the_wall(ddp)
                raise kept
        except Hit:
            pass
        found = []
        for _ in range(2):
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp)["a.weight"])
        return found

    for rung, results in on_every_rung(fail_inside).items():
        assert results == [[2.0, 2.0]] * 2, rung


def test_overlap_is_not_lost():
    """A failed first backward must not count as one that was watched."""

    def deferred(wrap):
        ddp = wrap(Walled())
        run_into_the_wall(ddp)
        for _ in range(2):
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()
        return len(getattr(ddp, "_deferred", ()))

    for rung, results in on_every_rung(deferred).items():
        assert results == [0, 0], rung


def test_what_announces_a_backward_may_fail_as_well():
    """An exception that is kept must not keep the failed backward alive."""

    def out_of_step(wrap):
        ddp = wrap(linear())
        kept = []
        try:
            with ddp.join():
                if ddp.rank == 0:
                    ddp(x_of_rank())
                else:
                    ddp.module(x_of_rank()).sum().backward()
        except RuntimeError as error:
            kept.append(error)
        found = []
        for _ in range(2):
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp)["weight"])
        return len(kept), found

    for rung, results in on_every_rung(out_of_step).items():
        assert results == [(1, [2.0, 2.0])] * 2, rung
