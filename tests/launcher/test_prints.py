"""What the ranks print, as the caller's reader sees it."""

import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist

from minddp.launcher import LaunchTimeout, launch


def test_in_the_order_of_the_ranks_as_one_block(capsys):
    def work() -> None:
        rank = dist.get_rank()
        time.sleep(0.2 * (2 - rank))  # the last rank is the first to print
        print("one")
        print("two", file=sys.stderr)

    results = launch(work, world_size=3)
    text, errors = capsys.readouterr()
    assert text == "".join(f"[rank {k}] one\n[rank {k}] two\n" for k in range(3))
    assert errors == ""
    assert results.outputs == ["one\ntwo\n"] * 3


def test_the_caller_writes_once(monkeypatch):
    """One write gives one stream output in a notebook, however the ranks were timed."""
    writes = []
    monkeypatch.setattr(sys.stdout, "write", writes.append)
    launch(lambda: [print(k) for k in range(50)])
    assert len(writes) == 1


def test_prints_of_c_and_of_other_processes(capfd):
    def work() -> None:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.printf(b"from printf\n")
        os.write(1, b"from descriptor 1\n")
        os.write(2, b"from descriptor 2\n")
        subprocess.run(["echo", "from a child process"], check=True)
        libc.putchar(ord("!"))  # and no newline

    launch(work, world_size=1, backend=None)  # a group would flush C's buffer
    assert capfd.readouterr().out.splitlines() == [
        "[rank 0] from printf",
        "[rank 0] from descriptor 1",
        "[rank 0] from descriptor 2",
        "[rank 0] from a child process",
        "[rank 0] !",
    ]


def test_whole_lines_of_many_ranks(capsys):
    def work() -> None:
        for step in range(100):
            print("step", step, "x" * 200)

    launch(work, world_size=4)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"[rank {r}] step {s} {'x' * 200}" for r in range(4) for s in range(100)]


def test_off_keeps_the_text(capsys):
    results = launch(lambda: print("quiet"), prints="off")
    assert capsys.readouterr().out == ""
    assert results.outputs == ["quiet\n"] * 2


def test_live_prints_lines_before_the_end(capsys):
    def work() -> None:
        print(f"alive {dist.get_rank()}")
        dist.barrier()
        if dist.get_rank() == 0:
            while True:
                time.sleep(1)

    with pytest.raises(LaunchTimeout):
        launch(work, prints="live", timeout=1.5)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[rank 0] alive 0",
        "[rank 1] alive 1",
    ]


def test_live_is_live(tmp_path):
    """The rank goes on only when its line has been shown."""
    flag = tmp_path / "line was shown"

    class Shown:
        encoding = "utf-8"

        def write(self, text: str) -> None:
            if "are you there" in text:
                flag.touch()

        def flush(self) -> None:
            pass

    def work(path) -> bool:
        print("are you there?")
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return path.exists()

    usual, sys.stdout = sys.stdout, Shown()
    try:
        results = launch(work, flag, prints="live", world_size=1)
    finally:
        sys.stdout = usual
    assert results == [True]


@pytest.mark.parametrize("prints", ["ordered", "live"])
def test_a_warning_of_all_ranks_is_shown_once(prints, capsys):
    def work() -> None:
        warnings.warn("the learning rate is high", UserWarning, stacklevel=1)
        if dist.get_rank() == 2:
            warnings.warn("only here", RuntimeWarning, stacklevel=1)
        dist.barrier()

    results = launch(work, world_size=4, prints=prints)
    lines = sorted(capsys.readouterr().out.replace("test_prints.py:", "").splitlines())
    lines = [line.partition(": ")[2] for line in lines]
    assert lines == [
        "UserWarning: the learning rate is high (x4)",
        "RuntimeWarning: only here",
    ]
    assert "the learning rate is high" in results.outputs[3]


def test_a_warning_logged_by_c_is_merged_and_loses_its_time(capsys):
    def work() -> None:
        rank = dist.get_rank()
        print(f"[rank{rank}]:[W1130 10:00:0{rank}.123456 socket.cpp:7{rank and 0}] no route")

    launch(work)
    assert capsys.readouterr().out == "[rank 0] [W socket.cpp:70] no route (x2)\n"


def test_a_progress_bar_leaves_its_last_state(capsys):
    def work() -> None:
        for percent in (0, 50, 100):
            sys.stderr.write(f"\rprogress {percent}%")
        sys.stderr.write("\n")

    launch(work, world_size=1)
    assert capsys.readouterr().out == "[rank 0] progress 100%\n"


def test_text_that_is_not_ascii_and_bytes_that_are_no_text(capsys):
    def work() -> None:
        print("mean over µ-batches: ½")
        os.write(1, b"\xff\xfe\n")
        print("a control \x1e character")

    launch(work, world_size=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[rank 0] mean over µ-batches: ½"
    assert lines[1].startswith("[rank 0] \ufffd")
    assert "control" in "".join(lines)


def test_a_function_may_redirect_its_descriptors(capsys):
    def work() -> int:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        print("lost")
        return dist.get_rank()

    assert launch(work) == [0, 1]
    assert capsys.readouterr().out == ""


def test_input_is_empty():
    def work() -> str:
        try:
            return input()
        except EOFError:
            return "end of file"

    assert launch(work) == ["end of file"] * 2


def test_the_output_of_torch_is_free_of_noise(capsys):
    """A start, a DDP step and an end give no line: none of them would help a reader."""

    def work() -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    launch(work)
    assert capsys.readouterr().out == ""
