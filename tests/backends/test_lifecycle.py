"""Guards, initialize and shutdown, and that `python -O` changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minddp.backends import DummyBackend, TorchBackend

from .small import Noting

GUARDED = {
    "get_world_size": lambda b: b.get_world_size(),
    "get_rank": lambda b: b.get_rank(),
    "get_local_rank": lambda b: b.get_local_rank(),
    "is_root_worker": lambda b: b.is_root_worker(),
    "is_local_root_worker": lambda b: b.is_local_root_worker(),
    "barrier": lambda b: b.barrier(),
    "local_barrier": lambda b: b.local_barrier(),
    "average_all": lambda b: b.average_all(torch.ones(1)),
    "any_rank": lambda b: b.any_rank(True),
    "all_ranks": lambda b: b.all_ranks(True),
    "from_root": lambda b: b.from_root(1),
    "root_first": lambda b: b.root_first().__enter__(),
    "check_batch_size": lambda b: b.check_batch_size(2),
    "distribute": lambda b: b.distribute(model=nn.Linear(1, 1)),
}


@pytest.mark.parametrize("method", GUARDED)
@pytest.mark.parametrize("kind", [Noting, DummyBackend, TorchBackend])
def test_before_initialize_and_after_shutdown_the_missing_call_is_named(method, kind):
    backend = kind()
    with pytest.raises(RuntimeError, match=rf"{backend.BACKEND_NAME} backend.*initialize\(\)"):
        GUARDED[method](backend)
    if kind is not TorchBackend:
        backend.initialize()
        backend.shutdown()
        with pytest.raises(RuntimeError, match=r"initialize\(\)"):
            GUARDED[method](backend)


def test_initialize_and_shutdown_again_do_nothing_and_may_alternate():
    backend = Noting()
    backend.shutdown()
    assert backend.initialize() is backend
    backend.initialize()
    assert backend.is_initialized()
    backend.shutdown()
    backend.shutdown()
    assert not backend.is_initialized()
    backend.initialize()
    assert backend.calls == ["initialize", "shutdown", "initialize"]
    assert not Noting().is_initialized()  # no state is shared between instances


def test_the_with_statement_shuts_down_after_an_error_too():
    backend = Noting()
    with pytest.raises(KeyError), backend:
        raise KeyError
    assert backend.calls == ["initialize", "shutdown"]


def test_a_failed_initialize_is_undone():
    backend = Noting(fails=True)
    with pytest.raises(OSError, match="no network"):
        backend.initialize()
    assert backend.calls == ["initialize", "shutdown"]
    assert not backend.is_initialized()


def test_names_and_timeouts_of_barriers_reach_the_twin():
    with Noting() as backend:
        backend.barrier("save", timeout=3)
        backend.local_barrier("load")
    assert backend.calls[1:3] == ["barrier save 3", "local barrier load None"]


OPTIMISED = """
import sys, torch, torch.distributed, torch.nn.parallel
watched = [torch.Tensor, torch.nn.Module, torch.distributed, torch.optim.Optimizer]
before = [dict(vars(thing)) for thing in watched]
from minddp.backends import DummyBackend, TorchBackend
from minddp.backends.selection import using_backend
def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"
ready = DummyBackend().initialize()
def empty():
    from minddp.backends import DistributedBackend
    class Empty(DistributedBackend): pass
calls = [DummyBackend().get_rank, lambda: ready.check_batch_size(0), TorchBackend().initialize,
         lambda: using_backend("dummy"), empty]
print(*(error_of(call) for call in calls))
print([dict(vars(thing)) for thing in watched] == before, {"deepspeed", "horovod"} & {*sys.modules})
"""


def test_python_dash_O_changes_nothing_and_the_import_neither():
    found = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMISED],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert found.stdout.splitlines() == [
        "RuntimeError ValueError ValueError RuntimeError TypeError",
        "True set()",  # torch is as it was, and neither library is loaded
    ]
