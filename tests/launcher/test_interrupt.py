"""The caller is interrupted, or dies: its ranks end, in a script and in a Jupyter kernel."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client import KernelManager

ROOT = str(Path(__file__).parents[2])

# Each rank starts a process of its own and leaves both pids, then all wait for ever.
WORK = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, {root!r})
import torch
import torch.distributed as dist
from minddp.launcher import launch

def work(folder):
    child = subprocess.Popen(["sleep", "1000"])
    with open(f"{{folder}}/rank{{dist.get_rank()}}.tmp", "w") as file:
        file.write(f"{{os.getpid()}} {{child.pid}}")
    print("rank is up")
    dist.barrier()
    os.rename(file.name, file.name[:-4])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    while True:
        time.sleep(1)
"""


def pids_of_ranks(folder: Path, process: psutil.Process) -> list[psutil.Process]:
    """Wait until both ranks are in their function, and return them and their children."""
    files = [folder / "rank0", folder / "rank1"]
    while not all(file.exists() for file in files):
        assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        psutil.wait_procs([process], timeout=0.05)
    return [psutil.Process(int(pid)) for file in files for pid in file.read_text().split()]


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    alive = psutil.wait_procs(processes, timeout=10)[1]
    return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def kernel(tmp_path) -> Iterator[KernelManager]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path), extra_arguments=["--HistoryManager.enabled=False"])
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


class Cells:
    """Runs cells in a kernel and collects what they show."""

    def __init__(self, manager: KernelManager) -> None:
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, source: str) -> tuple[str, str]:
        """The text printed, and the name and text of the error, if any."""
        return self.collect(self.client.execute(textwrap.dedent(source)))

    def collect(self, request: str) -> tuple[str, str]:
        printed, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed, error


@pytest.fixture
def cells(kernel) -> Iterator[Cells]:
    cells = Cells(kernel)
    yield cells
    cells.client.stop_channels()


def test_cells_define_the_function_and_its_world(cells, tmp_path):
    helpers = tmp_path / "elsewhere"
    helpers.mkdir()
    (helpers / "cell_helper.py").write_text("def double(x):\n    return 2 * x\n")
    work = tmp_path / "work"
    work.mkdir()
    printed, error = cells.run(
        f"""
        import os, sys
        sys.path[:0] = [{ROOT!r}, {str(helpers)!r}]
        os.chdir({str(work)!r})
        import torch, torch.distributed as dist
        import cell_helper
        from minddp.launcher import launch
        BASE = 40

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.tensor(1.0))

        def rank_plus(x):
            print("cwd is", os.path.basename(os.getcwd()))
            return cell_helper.double(x) + BASE + dist.get_rank(), Model()
        """
    )
    assert (printed, error) == ("", "")
    printed, error = cells.run(
        """
        (a, model), (b, _) = launch(rank_plus, 1)
        print(a, b, type(model) is Model, model.weight.item())
        """
    )
    assert error == ""
    assert printed == "[rank 0] cwd is work\n[rank 1] cwd is work\n42 43 True 1.0\n"

    source = "def bad():\n    value = {}\n    return value['key']\nlaunch(bad)"
    printed, error = cells.run(source)
    assert error.startswith("RankFailed: rank 0 failed: KeyError: 'key'.")
    assert "Cell In[3], line 3, in bad" in error
    assert "return value['key']" in error
    assert "ipykernel_" not in error

    printed, error = cells.run(
        """
        import warnings
        def warn():
            warnings.warn("from a cell")
        launch(warn)
        """
    )
    assert (printed, error) == ("[rank 0] UserWarning: from a cell (x2)\n", "")

    printed, error = cells.run(
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "launch(warn)"
    )
    assert error.startswith("RuntimeError: a process group is already initialised")


def test_interrupting_a_cell_ends_its_ranks(cells, kernel, tmp_path):
    cells.run(WORK.format(root=ROOT))
    request = cells.client.execute(f"launch(work, {str(tmp_path)!r}, timeout=600)")
    kernel_process = psutil.Process(kernel.provisioner.pid)
    ranks = pids_of_ranks(tmp_path, kernel_process)
    kernel.interrupt_kernel()
    printed, error = cells.collect(request)
    assert error.startswith("KeyboardInterrupt")
    assert printed == "[rank 0] rank is up\n[rank 1] rank is up\n"
    assert still_alive(ranks) == []
    printed, error = cells.run("print(launch(lambda: dist.get_rank()))")
    assert (printed, error) == ("[0, 1]\n", "")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_ranks_end_when_the_kernel_is_killed(cells, kernel, tmp_path, start_method):
    cells.run(WORK.format(root=ROOT))
    options = f"timeout=600, start_method={start_method!r}, env={{'TMPDIR': {str(tmp_path)!r}}}"
    cells.client.execute(f"launch(work, {str(tmp_path)!r}, {options})")
    kernel_process = psutil.Process(kernel.provisioner.pid)
    ranks = pids_of_ranks(tmp_path, kernel_process)
    servers = [p for p in kernel_process.children() if p not in ranks]
    kernel_process.kill()
    if start_method == "spawn":  # what a rank has started may end later than the rank
        ranks = ranks[::2]
    assert still_alive([*ranks, *servers]) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_script_that_gets_a_signal(signum, tmp_path):
    source = WORK + "launch(work, {folder!r}, timeout=600)\n"
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", source.format(root=ROOT, folder=str(tmp_path))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        process = psutil.Process(script.pid)
        ranks = pids_of_ranks(tmp_path, process)
        server = process.children()
        script.send_signal(signum)
        printed, errors = script.communicate(timeout=60)
        assert still_alive([*ranks, *server]) == []
        if signum == signal.SIGINT:
            assert "KeyboardInterrupt" in errors
            assert printed == "[rank 0] rank is up\n[rank 1] rank is up\n"
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert [name for name in left if name.startswith("minddp-")] == []
