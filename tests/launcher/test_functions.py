"""What can be run on the ranks, and what they see of the caller's world."""

import functools
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minddp.launcher import launch

SCALE = 10


class Scaler:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def times_rank(self) -> int:
        return self.factor * dist.get_rank()


def rank_times_scale() -> int:
    return dist.get_rank() * SCALE


def test_function_lambda_closure_method_and_partial():
    offset = 100

    def closure() -> int:
        return offset + dist.get_rank()

    assert launch(rank_times_scale) == [0, 10]
    assert launch(lambda: dist.get_world_size(), world_size=3) == [3, 3, 3]
    assert launch(closure) == [100, 101]
    assert launch(Scaler(7).times_rank) == [0, 7]
    assert launch(functools.partial(pow, 2), 5, backend=None) == [32, 32]


def test_arguments_are_passed_on():
    def show(a, *, b):
        return a, b

    assert launch(show, 1, b=[2]) == [(1, [2]), (1, [2])]


def test_a_collective_joins_the_ranks():
    def total() -> torch.Tensor:
        x = torch.full((3,), float(dist.get_rank() + 1))
        dist.all_reduce(x)
        return x

    results = launch(total, world_size=3)
    assert [x.tolist() for x in results] == [[6.0] * 3] * 3


def test_what_a_rank_finds():
    def look() -> dict[str, object]:
        found: dict[str, object] = dict(os.environ)
        backend = dist.get_backend() if dist.is_initialized() else None
        return found | {"backend": backend, "cwd": os.getcwd(), "argv": sys.argv}

    first, second = launch(look, env={"COLOUR": "green"})
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert second["LOCAL_RANK"] == "1"
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert first["COLOUR"] == "green"
    assert first["PATH"] == os.environ["PATH"]
    assert first["backend"] == "gloo"
    assert first["cwd"] == os.getcwd()
    assert first["argv"] == sys.argv
    assert launch(look, backend=None)[0]["backend"] is None


def test_the_environment_of_now_and_not_of_the_first_launch(monkeypatch, tmp_path):
    launch(lambda: None, backend=None)
    monkeypatch.setenv("SEASON", "autumn")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    look = lambda: (os.environ.get("SEASON"), os.environ.get("HOME"), os.getcwd())  # noqa: E731
    assert launch(look, backend=None)[1] == ("autumn", None, os.path.realpath(tmp_path))


def test_threads_share_the_cores_unless_told(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert launch(torch.get_num_threads, backend=None) == [max(1, cores // 2)] * 2
    assert launch(torch.get_num_threads, backend=None, threads_per_rank=3) == [3, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert launch(torch.get_num_threads, backend=None) == [4, 4]


def test_every_rank_is_seeded_the_same_way_unless_told():
    def draw() -> tuple[float, float, float]:
        import random

        import numpy

        return torch.rand(()).item(), random.random(), numpy.random.rand()

    first, second = launch(draw, backend=None)
    assert first == second == launch(draw, backend=None)[0]
    assert launch(draw, backend=None, seed=1)[0] != first
    own, other = launch(draw, backend=None, seed=None)
    assert own[1:] != other[1:]


def test_a_helper_module_beside_the_work_and_its_edit(tmp_path, monkeypatch):
    helper = tmp_path / "helper_of_test.py"
    helper.write_text("def answer():\n    return 'first'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import helper_of_test

    assert launch(helper_of_test.answer, backend=None) == ["first"] * 2
    helper.write_text("def answer():\n    return 'edited'\n")
    assert helper_of_test.answer() == "first"  # this process still has the old one
    assert launch(helper_of_test.answer, backend=None) == ["edited"] * 2


def test_a_module_that_no_rank_can_import_goes_by_value(tmp_path):
    import importlib.util

    path = tmp_path / "nowhere_on_the_path.py"
    path.write_text("FACTOR = 3\ndef triple(x):\n    return FACTOR * x\n")
    spec = importlib.util.spec_from_file_location("nowhere_on_the_path", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert launch(module.triple, 5, backend=None) == [15, 15]
    del sys.modules[spec.name]


def test_only_used_globals_travel():
    namespace = {"wanted": 5, "unwanted": threading.Lock(), "__name__": "__main__"}
    exec("def f():\n    return wanted", namespace)
    assert launch(namespace["f"], backend=None) == [5, 5]


def test_minddp_is_loaded_by_the_functions_that_use_it():
    assert launch(lambda: "minddp" in sys.modules, backend=None) == [False, False]

    def use() -> bool:
        import minddp
        import minddp._launch.travel

        return minddp.launch.__name__ == "launch" and minddp.launcher.travel.save is not None

    assert launch(use, backend=None) == [True, True]


def test_after_threads_and_autograd_in_the_caller():
    x = torch.randn(300, 300, requires_grad=True)
    (x @ x).sum().backward()

    def work() -> float:
        y = torch.ones(300, 300, requires_grad=True)
        (y @ y).sum().backward()
        return y.grad.sum().item()

    assert launch(work) == [54_000_000.0] * 2


SCRIPT = """
import sys
from dataclasses import dataclass
import torch, torch.distributed as dist
sys.path.insert(0, {root!r})
from minddp.launcher import launch
print("main runs", __name__)          # once: ranks must not run this file again

@dataclass
class Point:
    x: int

def work(p):
    things = [None, None]
    dist.all_gather_object(things, p)  # plain pickle, which looks Point up by its name
    return Point(p.x + dist.get_rank()), [t.x for t in things]

results = launch(work, Point(5))
assert all(isinstance(p, Point) for p, _ in results)
print(results)
try:
    launch(lambda: [1, 2][dist.get_rank() + 5])
except Exception as error:
    print(error.summary)
"""
SAID = [
    "main runs __main__",
    "[(Point(x=5), [5, 5]), (Point(x=6), [5, 5])]",
    "rank 0 failed: IndexError: list index out of range",
]


@pytest.mark.parametrize("how", ["script", "-c", "interactive"])
def test_from_a_script_without_a_main_guard_and_from_a_shell(how, tmp_path):
    root = str(Path(__file__).parents[2])
    source = textwrap.dedent(SCRIPT).format(root=root)
    (tmp_path / "some_script.py").write_text(source)
    command = [sys.executable]
    command += {
        "script": ["some_script.py"],
        "-c": ["-c", source],
        "interactive": ["-i", "-q"],
    }[how]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        input=repl_input(source) if how == "interactive" else None,
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = [line.replace("rank 0", "rank R") for line in SAID]
    printed = [line.replace("rank 1 f", "rank 0 f") for line in done.stdout.splitlines()]
    assert [line.replace("rank 0", "rank R") for line in printed] == expected, done.stderr
    assert done.returncode == 0


def repl_input(source: str) -> str:
    """A REPL takes a block to end at an empty line."""
    lines: list[str] = []
    for line in source.strip().splitlines():
        block_ends = lines and lines[-1].startswith(" ") and not line.startswith((" ", "except"))
        if line.strip():
            lines += [""] * bool(block_ends) + [line]
    return "\n".join([*lines, "", ""])
