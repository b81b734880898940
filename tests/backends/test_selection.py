"""Flags that mean the same whatever is installed, and which backend they choose."""

import argparse

import pytest

import minddp
from minddp.backends import (
    BACKENDS,
    DummyBackend,
    TorchBackend,
    add_backend_args,
    backend_from_args,
    selection,
    using_backend,
)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.setattr(selection, "_chosen", [])
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def parser():
    return add_backend_args(argparse.ArgumentParser())


def choose(*words, made_from=None):
    return backend_from_args((made_from or parser()).parse_args(words))


def test_no_flag_is_one_process():
    backend = choose()
    assert type(backend) is DummyBackend
    assert not backend.is_initialized()
    assert using_backend("dummy") and not using_backend("torch")


@pytest.mark.parametrize("name", ["gloo", "GLOO", "Gloo"])
@pytest.mark.parametrize("flag", ["--distributed-backend", "--distr_backend"])
def test_names_in_any_case(name, flag):
    backend = choose(flag, name)
    assert type(backend) is TorchBackend
    assert backend.communication == "gloo"
    for which in ("gloo", "GLOO", "torch", TorchBackend):
        assert using_backend(which), which
    for which in ("nccl", "dummy", "deepspeed", DummyBackend):
        assert not using_backend(which), which


def test_an_unknown_name_tells_the_choices_and_the_nearest():
    with pytest.raises(ValueError) as caught:
        choose("--distributed-backend", "glo")
    assert "did you mean 'gloo'?" in str(caught.value)
    assert all(name in str(caught.value) for name in BACKENDS)
    with pytest.raises(RuntimeError, match="no backend is chosen"):
        using_backend("gloo")  # a failed choice leaves nothing behind
    choose()
    with pytest.raises(ValueError, match="did you mean 'gloo'"):
        using_backend("glo")


@pytest.mark.parametrize("name", [name for name, found in BACKENDS.items() if found is None])
def test_a_backend_that_is_not_there_yet_says_so(name):
    with pytest.raises(NotImplementedError, match=f"{name} is not part of this version"):
        choose("--distributed-backend", name)


def test_deepspeed_flag_is_short_for_the_name(monkeypatch):
    with pytest.raises(ValueError, match="--deepspeed contradicts --distributed-backend gloo"):
        choose("--deepspeed", "--distributed-backend", "gloo")
    monkeypatch.setitem(BACKENDS, "deepspeed", DummyBackend)
    assert type(choose("--deepspeed")) is DummyBackend
    assert using_backend("deepspeed")


@pytest.mark.parametrize("spelling", ["--local_rank=1", "--local-rank=1"])
def test_both_spellings_of_local_rank(spelling, monkeypatch):
    assert choose("--distributed-backend", "gloo", spelling)._given_local_rank == 1
    monkeypatch.setenv("LOCAL_RANK", "1")
    choose("--distributed-backend", "gloo", spelling)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match="--local-rank 1 contradicts LOCAL_RANK=0"):
        choose("--distributed-backend", "gloo", spelling)


def test_local_rank_not_given():
    assert choose("--distributed-backend", "gloo")._given_local_rank is None
    assert choose("--distributed-backend", "gloo", "--local_rank", "-1")._given_local_rank is None


def test_adding_the_flags_again_and_to_a_parser_that_has_some():
    twice = add_backend_args(parser())
    assert type(choose("--distr-backend", "torch", made_from=twice)) is TorchBackend
    own = argparse.ArgumentParser()
    own.add_argument("--local_rank", type=int, default=-1, dest="place")
    own.add_argument("--local-rank", type=int, default=-1, dest="place")
    add_backend_args(own)
    assert own.parse_args(["--local_rank", "3"]).place == 3
    half = argparse.ArgumentParser()
    half.add_argument("--local_rank", type=int, default=-1)
    add_backend_args(half)
    assert half.parse_args(["--local-rank", "3"]).local_rank == 3
    assert half.parse_args([]).local_rank == -1


def test_flags_of_the_ladder_are_handed_on():
    both = minddp.add_ddp_args(parser())
    words = "--distributed-backend gloo --ddp-backend legacy --buffer-size 7".split()
    backend = choose(*words, made_from=both)
    assert backend._ddp_backend == "legacy"
    assert backend._ddp_options == {"buffer_size": 7}


def test_a_backend_of_ones_own(monkeypatch):
    class Mine(DummyBackend):
        BACKEND_NAME = "Mine"

    monkeypatch.setitem(BACKENDS, "mine", Mine)
    assert type(choose("--distributed-backend", "MINE")) is Mine
    assert using_backend("mine") and using_backend(Mine) and using_backend(DummyBackend)
