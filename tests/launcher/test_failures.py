"""A rank raises, leaves or dies: the launch says which, how, and what the others did."""

import os
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

from minddp.launcher import LaunchTimeout, RankFailed, launch


def fail(fn, **options) -> RankFailed:
    """Launch `fn`, which must fail, long before the time-out."""
    begin = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        launch(fn, **{"timeout": 120, "prints": "off"} | options)
    assert time.monotonic() - begin < 60
    return caught.value


def test_the_traceback_is_that_of_the_rank_and_begins_in_the_function():
    def work() -> None:
        print("before the failure")
        if dist.get_rank() == 1:
            raise ValueError("boom")

    error = fail(work)
    assert error.rank == 1
    assert error.summary == "rank 1 failed: ValueError: boom"
    assert error.exitcode == 1
    assert error.signal is None
    assert error.output == "before the failure\n"
    frames = [line for line in error.traceback.splitlines() if line.startswith("  File")]
    assert len(frames) == 1 and frames[0].endswith("in work")
    assert 'raise ValueError("boom")' in error.traceback
    assert error.others == {0: "had returned from its function without any collective"}
    assert str(error).startswith("rank 1 failed: ValueError: boom.\n\nTraceback")


def test_the_others_wait_in_a_collective():
    def work() -> None:
        dist.all_reduce(torch.ones(3))
        if dist.get_rank() == 1:
            raise ValueError("boom")
        dist.all_reduce(torch.ones(4096))

    error = fail(work, world_size=3)
    assert error.summary == "rank 1 failed: ValueError: boom"
    waits = "was stopped because rank 1 failed; it waits in all_reduce #1 (4096 float32)"
    assert error.others == {0: waits, 2: waits}
    assert f"rank 2 {waits}." in str(error)


def test_the_cause_is_found_behind_the_echo():
    def work() -> None:
        if dist.get_rank() == 1:
            try:
                dist.all_reduce(torch.ones(3))
            except RuntimeError as error:
                raise KeyError("training failed") from error
        dist.destroy_process_group()  # the connections break before this rank fails
        time.sleep(0.5)
        raise ValueError("the cause")

    error = fail(work)
    assert error.summary == "rank 0 failed: ValueError: the cause"
    assert error.others == {1: "lost its connection to a peer in all_reduce #0 (3 float32)"}


def test_ranks_that_fail_alike_are_reported_alike_each_time():
    def work() -> None:
        dist.barrier()
        time.sleep(0.1 * (2 - dist.get_rank()))  # the last rank is the first to fail
        raise ValueError("the same on all ranks")

    error = fail(work, world_size=3)
    assert error.summary == "rank 0 failed: ValueError: the same on all ranks"
    assert error.others[2] == "also failed: ValueError: the same on all ranks"


def test_chained_exceptions_are_shown():
    def work() -> None:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("outer") from error

    error = fail(work)
    assert "KeyError: 'missing'" in error.traceback
    assert "direct cause" in error.traceback


@pytest.mark.parametrize(
    ("code", "exitcode", "text"),
    [
        (3, 3, "rank 0 called sys.exit(3) before its function returned"),
        (0, 0, "rank 0 called sys.exit(0) before its function returned"),
        ("sorry", 1, "rank 0 called sys.exit('sorry') before its function returned"),
    ],
)
def test_sys_exit(code, exitcode, text):
    def work() -> None:
        if dist.get_rank() == 0:
            sys.exit(code)
        dist.barrier()

    error = fail(work)
    assert (error.rank, error.exitcode, error.summary) == (0, exitcode, text)
    assert "in work" in error.traceback


@pytest.mark.parametrize("code", [0, 3])
def test_os_exit(code):
    def work() -> None:
        print("last words")
        if dist.get_rank() == 1:
            os._exit(code)
        dist.all_reduce(torch.ones(2))

    error = fail(work)
    assert (error.rank, error.exitcode, error.signal) == (1, code, None)
    assert error.summary.startswith(
        f"rank 1 ended with exit code {code} before its function returned"
    )
    assert "last words" in str(error)
    assert error.others[0] == "lost its connection to a peer in all_reduce #0 (2 float32)"


def test_keyboard_interrupt_in_a_rank():
    def work() -> None:
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGINT)
        dist.barrier()

    error = fail(work)
    assert error.rank == 0
    assert error.summary.startswith("rank 0 failed: KeyboardInterrupt")
    assert "in work" in error.traceback


def test_abort_shows_the_python_stack():
    def work() -> None:
        print("last words")
        if dist.get_rank() == 0:
            os.abort()
        dist.barrier()

    error = fail(work)
    assert (error.rank, error.exitcode, error.signal) == (0, -6, signal.SIGABRT)
    assert "rank 0 was killed by SIGABRT (signal 6)" in error.summary
    assert error.traceback.endswith("in work\n    os.abort()\n")
    assert "last words" in str(error)


def test_a_killed_rank_outranks_the_exceptions_of_its_peers():
    def work() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(5))

    error = fail(work, world_size=3)
    assert (error.rank, error.exitcode, error.signal) == (1, -9, signal.SIGKILL)
    assert "out of memory" in error.summary
    assert set(error.others) == {0, 2}


def test_sigbus_speaks_of_shared_memory():
    def work() -> None:
        os.kill(os.getpid(), signal.SIGBUS)

    error = fail(work, backend=None, world_size=1)
    assert error.signal == signal.SIGBUS
    assert "num_workers=0" in error.summary and "/dev/shm has" in error.summary


def test_mismatched_sizes():
    def work() -> None:
        dist.all_reduce(torch.ones(4096 if dist.get_rank() == 0 else 4000))

    error = fail(work)
    assert error.rank == 1
    assert "different sizes" in str(error)
    assert "all_reduce #0 (4096 float32)" in str(error)
    assert "in work" in str(error)


def test_a_module_that_fails_on_import_in_the_rank(tmp_path, monkeypatch):
    (tmp_path / "changes_its_mind.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import changes_its_mind

    (tmp_path / "changes_its_mind.py").write_text("raise RuntimeError('bad module')\n")
    assert "RuntimeError: bad module" in fail(changes_its_mind.f).summary


def test_a_failure_shows_what_was_printed(capsys):
    def work() -> None:
        print("one")
        if dist.get_rank() == 1:
            raise ValueError("boom")
        dist.barrier()

    fail(work, prints="ordered")
    assert capsys.readouterr().out == "[rank 0] one\n[rank 1] one\n"


def late(fn, **options) -> LaunchTimeout:
    with pytest.raises(LaunchTimeout) as caught:
        launch(fn, **{"prints": "off", "timeout": 2.0} | options)
    return caught.value


def test_an_infinite_loop():
    def spin() -> None:
        while True:
            pass

    def work() -> None:
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 1:
            print("spinning")
            spin()
        dist.broadcast(torch.ones(7, dtype=torch.int64), src=1)

    error = late(work)
    assert str(error).startswith("no answer after 2.0 s. ")
    assert "rank 0 waits in broadcast #1 (7 int64)" in error.summary
    assert "rank 1 is in spin" in error.summary
    assert "after all_reduce #0 (2 float32)" in error.summary
    assert "in work" in error.stacks[0] and "dist.broadcast(" in error.stacks[0]
    assert "in spin" in error.stacks[1]
    assert error.collectives[0].op == "broadcast" and not error.collectives[0].done
    assert error.collectives[1].op == "all_reduce" and error.collectives[1].done
    assert error.outputs == ["", "spinning\n"]


def test_a_rank_that_leaves_early_is_noticed_before_the_time_out():
    def work() -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(4096))

    begin = time.monotonic()
    error = late(work, timeout=600)
    assert time.monotonic() - begin < 300
    assert error.summary == (
        "no answer will come. rank 0 waits in all_reduce #3 (4096 float32); "
        "rank 1 returned from its function after all_reduce #2 (2 float32)"
    )
    assert "dist.all_reduce(torch.ones(4096))" in str(error)
    assert set(error.stacks) == {0}


def test_a_slow_rank_is_not_one_that_was_left():
    def work() -> int:
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 0:
            time.sleep(3.5)
        return dist.get_rank()

    assert launch(work) == [0, 1]


def test_different_collectives():
    def work() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(4))
        else:
            dist.broadcast(torch.ones(4), src=0)

    error = late(work)
    assert (
        "The ranks disagree about their next collective: rank 0 calls all_reduce #0 (4 float32); "
        "rank 1 calls broadcast #0 (4 float32)." in str(error)
    )


def test_point_to_point_and_a_group_of_two():
    def work() -> None:
        pair = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            dist.recv(torch.ones(2), src=2)
        elif dist.get_rank() == 1:
            dist.all_reduce(torch.ones(3), group=pair)
        else:
            time.sleep(1000)

    error = late(work, world_size=3)
    assert "rank 0 waits in recv" in error.summary
    assert "rank 1 waits in all_reduce" in error.summary and "(3 float32)" in error.summary
    assert "rank 2 is in work" in error.summary


def test_a_rank_stuck_in_c_with_the_interpreter_locked_still_shows_its_stack():
    def work() -> None:
        import ctypes

        libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the interpreter's lock during a call
        mutex = ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)

    error = late(work, backend=None, world_size=1)
    assert "in work" in error.stacks[0]


def test_without_torchs_flight_recorder_the_stack_names_the_call():
    def work() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(2))
        else:
            time.sleep(1000)

    error = late(work, env={"TORCH_FR_BUFFER_SIZE": "0"})
    assert error.summary.startswith("no answer after 2.0 s. rank 0 waits in all_reduce; rank 1 is")
    assert error.collectives == {0: None, 1: None}


def test_the_backward_of_torchs_ddp():
    def work() -> None:
        from torch import nn

        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
        loss = model(torch.ones(1, 3)).sum()
        if dist.get_rank() == 0:
            loss.backward()
        else:
            time.sleep(1000)

    error = late(work)
    assert "rank 0 waits in all_reduce #" in error.summary
    assert "loss.backward()" in error.stacks[0]
    assert error.collectives[0].numel == 4
