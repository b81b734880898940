"""`error_on_unused`: parameters that a loss does not depend on, by name and number of ranks."""

from __future__ import annotations

from .small import Layers, error_of, grads, on_every_rung, x_of_rank


def test_names_what_was_left_out_and_on_how_many_ranks_it_was_used():
    def left_out(wrap):
        ddp = wrap(Layers("abcd"), error_on_unused=True)
        found = []
        for which in ("ab", "bb"):
            ddp.zero_grad()
            loss = ddp(x_of_rank(), which[ddp.rank] + "d").sum()
            found += [error_of(loss.backward), grads(ddp)]
        ddp.zero_grad()
        return [*found, error_of(ddp(x_of_rank(), "abcd").sum().backward), grads(ddp)]

    for rung, results in on_every_rung(left_out).items():
        for rank, (first, after, second, _, third, at_last) in enumerate(results):
            assert first.startswith(
                f"RuntimeError: rank {rank}: this backward left parameters out: "
                "a.weight (used on 1 of 2 ranks), b.weight (used on 1 of 2 ranks), "
                "c.weight (used on 0 of 2 ranks). "
            ), rung
            assert "a.weight (used on 0 of 2 ranks), c.weight (used on 0 of 2 ranks). " in second, (
                rung
            )
            # They are averaged all the same.
            assert after == {"a.weight": 0.5, "b.weight": 1.5, "c.weight": None, "d.weight": 2.0}
            assert third == "no error", rung
            assert at_last == dict.fromkeys(after, 2.0), rung


def test_an_old_gradient_is_no_use():
    def old(wrap):
        ddp = wrap(Layers(), error_on_unused=True)
        ddp(x_of_rank(), "ab").sum().backward()
        return error_of(ddp(x_of_rank(), "a").sum().backward)

    for rung, results in on_every_rung(old).items():
        assert all("left parameters out: b.weight (used on 0 of 2" in found for found in results), (
            rung
        )


def test_use_anywhere_in_an_accumulation_counts():
    def accumulated(wrap):
        ddp = wrap(Layers(), error_on_unused=True)
        found = []
        for _ in range(2):
            with ddp.no_sync():
                found.append(error_of(ddp(x_of_rank(), "a").sum().backward))
            found.append(error_of(ddp(x_of_rank(), "b").sum().backward))
        found.append(error_of(ddp(x_of_rank(), "b").sum().backward))
        return [text[:13] for text in found]

    for rung, results in on_every_rung(accumulated).items():
        assert results == [["no error"] * 4 + ["RuntimeError:"]] * 2, rung


def test_frozen_parameters_are_not_unused():
    def frozen(wrap):
        model = Layers("abc")
        model.c.weight.requires_grad_(False)
        ddp = wrap(model, error_on_unused=True)
        found = [error_of(ddp(x_of_rank(), "ab").sum().backward)]
        model.b.weight.requires_grad_(False)
        return [*found, error_of(ddp(x_of_rank(), "a").sum().backward)]

    for rung, results in on_every_rung(frozen).items():
        assert results == [["no error", "no error"]] * 2, rung
