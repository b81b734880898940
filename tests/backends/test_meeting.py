"""The ranks find each other by their environment alone; no wait is longer than the time-out."""

import os
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minddp.backends import TorchBackend, waiting
from minddp.launcher import launch

from .small import error_of

SLACK = 30  # seconds: a safety net on a busy machine, no measurement


def start(case, **settings):
    """Run a case on ranks that have torchrun's variables, but no group."""
    return launch(case, backend=None, **settings)


def meet_and_leave():
    found, backend = [], TorchBackend(timeout=SLACK)
    for _ in range(3):  # each time anew
        with backend:
            backend.barrier()
            found.append((backend.average_all(backend.get_rank()).item(), backend.communication))
        found.append(dist.is_initialized())
    backend.shutdown()
    return found


def test_initialize_shutdown_and_again():
    assert start(meet_and_leave) == [[(0.5, "gloo"), False] * 3] * 2


def destroyed_by_hand():
    backend = TorchBackend(timeout=SLACK).initialize()
    backend.barrier()
    dist.destroy_process_group()
    backend.shutdown()
    backend.shutdown()
    return backend.initialize().any_rank(True)


def test_shutdown_without_a_group():
    assert start(destroyed_by_hand) == [True, True]


def counts_local_ranks():
    del os.environ["LOCAL_RANK"]
    with TorchBackend(timeout=SLACK) as backend:
        backend.local_barrier()
        return backend.get_local_rank()


def test_local_ranks_are_counted_where_nobody_tells_them():
    assert start(counts_local_ranks) == [0, 1]


def slurm():
    rank = os.environ.pop("RANK")
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ |= {"SLURM_PROCID": rank, "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    os.environ |= {"SLURM_NODEID": rank, "SLURM_JOB_NODELIST": "a[1-2]"}
    with TorchBackend(timeout=SLACK) as backend:
        place = backend.get_rank(), backend.get_world_size(), backend.get_local_rank()
        return (*place, backend.average_all(backend.get_rank()).item())


def test_ranks_that_slurm_started():
    assert start(slurm) == [(0, 2, 0, 0.5), (1, 2, 0, 0.5)]


def nobody_else():
    os.environ["WORLD_SIZE"] = "4"
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        waiting.SECONDS_BEFORE_A_WARNING = 0.1
        error = error_of(TorchBackend(timeout=2.0).initialize)
    return error, [str(w.message) for w in caught], time.monotonic() - began


def test_ranks_that_nobody_started_are_named_in_a_warning_and_then_an_error():
    for error, warned, seconds in start(nobody_else):
        assert error.startswith("TimeoutError: 2 of 4 ranks joined; ranks 2 and 3 are missing")
        assert "2 of 4 ranks joined" in warned[-1] or "1 of 4 ranks joined" in warned[-1]
        assert 2.0 <= seconds < SLACK


def without_rank_0(address):
    os.environ |= {"RANK": "1", "LOCAL_RANK": "0", "MASTER_ADDR": address}
    began = time.monotonic()
    error = error_of(TorchBackend(timeout=1.0).initialize)
    return error, time.monotonic() - began


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-host.invalid", "192.0.2.1"])
def test_an_address_where_nobody_answers(address):
    [(error, seconds), _] = start(without_rank_0, address=address)
    assert error.startswith("OSError: rank 1 found nobody at MASTER_ADDR=" + address)
    assert "is rank 0 running" in error
    assert seconds < SLACK


def wrong_address():
    os.environ["MASTER_ADDR"] = "192.0.2.1"
    if os.environ["RANK"] == "0":
        return error_of(TorchBackend(timeout=1.0).initialize)


def test_rank_0_with_the_address_of_another_host():
    assert "so MASTER_ADDR must be an address of it" in start(wrong_address)[0]


def alone():
    with TorchBackend(timeout=SLACK) as backend:
        model = torch.nn.Linear(1, 1, bias=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "the process group has one rank"
            twin, *_ = backend.distribute(model=model)
        twin(torch.ones(1, 1)).sum().backward()
        backend.barrier()
        return backend.get_world_size(), backend.average_all(3).item(), model.weight.grad.item()


def test_a_group_of_one():
    assert start(alone, world_size=1) == [(1, 3.0, 1.0)]


def test_a_store_that_is_gone():
    class Gone:
        def check(self, keys):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(ConnectionError, match="rank 0, or the launcher that kept it, has ended"):
        waiting.missing_after_wait(Gone(), {0: "key"}, 1.0, str)


def port_in_use():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        os.environ["MASTER_PORT"] = str(other.getsockname()[1])
        os.environ["WORLD_SIZE"] = "1"
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0"
        return os.environ["MASTER_PORT"], error_of(TorchBackend(timeout=SLACK).initialize)


def test_a_port_in_use():
    for port, error in start(port_in_use):
        assert error.startswith(f"OSError: rank 0 cannot open MASTER_PORT={port} on this host")


def not_a_store():
    """Rank 1 finds something at the port that is no store and never answers."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        os.environ["MASTER_PORT"] = str(other.getsockname()[1])
        os.environ |= {"RANK": "1", "LOCAL_RANK": "0"}
        return error_of(TorchBackend(timeout=1.0).initialize)


def test_another_program_at_the_port():
    assert "is not the store of rank 0" in start(not_a_store)[0]


def same_rank_twice():
    """Two processes are rank 1 of 2; the first rank is a rank 0."""
    os.environ["WORLD_SIZE"] = "2"
    if os.environ["RANK"] == "2":
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = "1"
    return error_of(TorchBackend(timeout=SLACK).initialize)


def test_two_processes_with_the_same_rank():
    first, *same = start(same_rank_twice, world_size=3)
    assert first == "no error"
    [refused] = [error for error in same if error != "no error"]
    assert "two processes were started with RANK=1" in refused


def contradicting():
    backend = TorchBackend("gloo" if os.environ["RANK"] == "0" else None, timeout=SLACK)
    return error_of(backend.initialize), error_of(TorchBackend("nccl", timeout=SLACK).initialize)


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="here NCCL would be possible")
def test_all_ranks_are_told_what_they_contradict_each_other_in():
    for mixed, without_gpus in start(contradicting):
        assert "the ranks ask for different communication: rank 0 gloo, rank 1 no pref" in mixed
        assert "NCCL needs a CUDA device for each rank: 2 ranks on" in without_gpus


def no_environment():
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name)
    return error_of(TorchBackend().initialize)


def test_without_a_launcher():
    for error in start(no_environment):
        assert "RANK is not set" in error and "MASTER_PORT is not set" in error
        assert "torchrun --nproc-per-node 2" in error


UNDER_TORCHRUN = """
import os, sys
from minddp.backends import TorchBackend
with TorchBackend(timeout=60) as backend:
    backend.barrier("start")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and backend.get_rank() == 1:
        os._exit(7)
    found = backend.average_all(backend.get_rank()).item(), backend.get_local_rank()
    backend.barrier("end")
open(sys.argv[1] + os.environ["RANK"], "w").write(str(found))
"""


def test_torchrun_and_its_restart(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNDER_TORCHRUN)
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1".split()
    done = subprocess.run(
        [sys.executable, *command, str(script), str(tmp_path / "rank")],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{r}").read_text() for r in (0, 1)] == ["(0.5, 0)", "(0.5, 1)"]
