"""What is refused before any process starts, with what was found and the way out."""

import os
import pickle
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minddp._launch import forkserver
from minddp.launcher import launch


@pytest.fixture(autouse=True)
def no_process_starts(monkeypatch):
    """The fork server must not even be asked."""

    def refuse(fds: list[int]) -> None:
        raise AssertionError("a rank was started")

    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "send_to_server", refuse)
        yield


def nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"world_size": 0}, ValueError, "world_size must be at least 1, got 0"),
        ({"world_size": -1}, ValueError, "got -1"),
        ({"world_size": 1.5}, TypeError, "world_size must be an integer, got 1.5 of type float"),
        ({"world_size": "2"}, TypeError, "got '2' of type str"),
        ({"world_size": True}, TypeError, "got True"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0"),
        ({"timeout": -3.0}, ValueError, "-3.0"),
        ({"timeout": float("nan")}, ValueError, "nan"),
        ({"timeout": "5"}, TypeError, "timeout must be a number of seconds, got '5'"),
        ({"timeout": None}, TypeError, "None"),
        ({"backend": "glo"}, ValueError, "got 'glo'; did you mean 'gloo'?"),
        ({"backend": "NCLL"}, ValueError, "did you mean 'nccl'?"),
        ({"backend": "mps"}, ValueError, "backend='gloo' runs on the CPU"),
        ({"backend": 3}, TypeError, "backend must be one of 'auto', 'gloo', 'nccl', got 3"),
        ({"prints": "order"}, ValueError, "did you mean 'ordered'?"),
        ({"start_method": "fork"}, ValueError, "hangs"),
        ({"start_method": "spwan"}, ValueError, "did you mean 'spawn'?"),
        ({"threads_per_rank": 0}, ValueError, "threads_per_rank must be at least 1"),
        ({"seed": "x"}, TypeError, "seed must be an integer"),
        ({"env": {"A": 1}}, TypeError, "'A': 1"),
        ({"env": ["A"]}, TypeError, "env must be a dict"),
        (
            {"env": {"GLOO_SOCKET_IFNAME": "eth77"}},
            ValueError,
            "'eth77', which is not found; avail",
        ),
    ],
)
def test_bad_options(options, kind, text):
    with pytest.raises(kind) as caught:
        launch(nothing, **options)
    assert text in str(caught.value)


def test_something_that_is_no_function():
    with pytest.raises(TypeError, match="Pass the function itself"):
        launch(nothing())

    async def later() -> None:
        return None

    with pytest.raises(TypeError, match="async"):
        launch(later)


def test_horovod_that_is_initialised_is_refused(monkeypatch):
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "horovod.torch", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(RuntimeError, match=r"Horovod is initialised.*shutdown\(\)"):
        launch(nothing)


def test_arguments_that_do_not_fit_the_function():
    def wants_rank(rank: int) -> int:
        return rank

    with pytest.raises(TypeError, match=r"missing a required argument: 'rank'.*get_rank"):
        launch(wants_rank)
    with pytest.raises(TypeError, match="too many positional arguments"):
        launch(nothing, 1)


def test_nccl_without_enough_gpus_gives_the_numbers(monkeypatch):
    for gpus, text in ((0, "there are 0 visible GPUs"), (1, "there is 1 visible GPU")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        with pytest.raises(ValueError, match=f"world_size is 2, and {text}"):
            launch(nothing, backend="nccl")


def test_auto_takes_nccl_only_with_a_gpu_for_each_rank(monkeypatch):
    from minddp._launch.checks import choose_backend

    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_backend("auto", n) for n in (1, 2, 3)] == ["nccl", "nccl", "gloo"]
    assert choose_backend("nccl", 2) == "nccl"
    assert choose_backend("gloo", 1) == "gloo"


def test_an_argument_that_cannot_be_sent_is_named_with_its_type():
    def use(a, loader=None):
        return a

    with pytest.raises(TypeError) as caught:
        launch(use, {"x": [1, threading.Lock()]})
    assert "the argument `a` cannot be sent to the ranks" in str(caught.value)
    assert "a['x'][1] is of type _thread.lock" in str(caught.value)
    with pytest.raises(TypeError, match="`loader`.*of type generator"):
        launch(use, 1, loader=(i for i in range(3)))


def test_a_global_or_enclosing_name_that_cannot_be_sent_is_named():
    lock = threading.Lock()

    def use_lock() -> bool:
        return lock.locked()

    with pytest.raises(TypeError) as caught:
        launch(use_lock)
    assert "the function use_lock cannot be sent" in str(caught.value)
    assert "lock, which use_lock uses, is of type _thread.lock" in str(caught.value)
    assert "%%writefile" in str(caught.value)


def test_a_tensor_with_a_graph_is_named_with_the_attribute_that_holds_it():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.layer.scaled = self.layer.weight * 2

    def use(model: nn.Module) -> None:
        return None

    with pytest.raises(TypeError) as caught:
        launch(use, Net())
    assert "model.layer.scaled is a tensor that autograd computed (MulBackward0)" in str(
        caught.value
    )
    assert "Build the model" in str(caught.value)


def test_an_initialised_process_group_is_refused(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match=r"already initialised.*destroy_process_group\(\)"):
            launch(nothing)
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    finally:
        dist.destroy_process_group()
    with pytest.raises(TypeError) as caught:
        launch(lambda model: None, wrapped)
    assert "wrapped already (in DistributedDataParallel)" in str(caught.value)
    assert "wrapped.module" in str(caught.value)


def test_our_own_wrappers_are_refused_too(tmp_path):
    from minddp.ddp import NaiveDDP

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = NaiveDDP(nn.Linear(1, 1))
    finally:
        dist.destroy_process_group()
    with pytest.raises(TypeError, match=r"is a model that is wrapped already \(in NaiveDDP\)"):
        launch(lambda model: None, {"net": wrapped})


def test_refused_calls_leave_the_environment_and_no_file(tmp_path):
    before = dict(os.environ)
    with pytest.raises(TypeError):
        launch(lambda lock: None, threading.Lock())
    assert dict(os.environ) == before


def test_the_errors_can_themselves_be_pickled():
    from minddp.launcher import LaunchTimeout, RankFailed

    failed = pickle.loads(pickle.dumps(RankFailed("text", rank=1, others={0: "fine"})))
    assert (str(failed), failed.rank, failed.others) == ("text", 1, {0: "fine"})
    assert str(pickle.loads(pickle.dumps(LaunchTimeout("late", stacks={})))) == "late"
