"""See every collective: who called what, when, how large, and in which part of the step.

A `TorchDispatchMode` sees each operator on its way to its implementation. Collectives are
operators too (library `c10d`), whether Python or the C++ reducer of torch's own DDP calls them, so
one recorder serves torch's DDP, ours and the student's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from minddp._recorder.c10d_calls import Call, Signature, signature, work_of
from minddp._recorder.completion import CompletionListener, listening
from minddp._recorder.compute_spans import Op, compute_spans
from minddp._recorder.phases import PhaseTracker
from minddp._recorder.profiler_times import ProfiledTimes
from minddp.recording import Collective, Recording

__all__ = ["Collective", "Recording", "record"]

Times = Literal["dispatch", "profiler"]


@contextmanager
def record(times: Times = "dispatch") -> Iterator[Recording]:
    """Record the collectives and the compute time of this rank within the block.

        with minddp.record() as recording:
            ddp_model(inputs).sum().backward()
        print(recording.table())

    Only this process and this thread are recorded (autograd's backward on CPU runs in the thread
    that calls it); nothing is communicated, so ranks may record or not as they like. Blocks nest,
    and work without a process group. `recording.events` grows during the block; what is complete
    when the block is left by an exception is kept.

    times="dispatch": a collective starts when it is launched and ends when its future calls back.
    On CPU this agreed with the profiler within 0.3 ms where cores were free, but the callback
    needs the interpreter lock. times="profiler": start and end as gloo's threads report them to
    `torch.profiler`, where they do (else the former); only one profiler can run in a process.
    Times are host times: on a GPU they say when work was queued, not when it ran.

    Price: every operator passes through Python. Measured on CPU, a step takes 1.1 to 1.3 times as
    long for an MLP and a transformer, and 3 to 5 times for 200 small layers. So compare times
    among recorded runs only. Not seen: collectives that other threads call (`then` callbacks of a
    future).

    Raises ValueError for unknown `times`, RuntimeError if times="profiler" and a profiler runs.
    """
    if times not in ("dispatch", "profiler"):
        raise ValueError(f'times is {times!r}; expected "dispatch" or "profiler"')
    recording = Recording(*_place(), times=times)
    recorder = _Recorder(recording)
    profiled = ProfiledTimes()
    with ExitStack() as stack:
        stack.callback(recorder.finish, profiled)
        if times == "profiler":
            stack.enter_context(profiled.collected())
        stack.enter_context(listening(recorder.listener))
        stack.enter_context(recorder.tracker)
        stack.enter_context(recorder)
        yield recording


class _Recorder(TorchDispatchMode):
    """Writes what passes the dispatcher into `recording`."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording
        self.tracker = PhaseTracker()
        self.listener = CompletionListener()
        self.ops: list[Op] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = signature(func)
        if found is not None:
            return self._collective(found, func, args, kwargs or {})
        kind = self.tracker.compute_kind()
        start = time.monotonic()
        result = func(*args, **(kwargs or {}))
        self.ops.append((start, time.monotonic(), kind))
        return result

    def _collective(self, found: Signature, func: Any, args: Any, kwargs: Any) -> Any:
        # Written down before the call: if it never returns, the recording still shows it.
        index = self._write(found.read(args))
        result = func(*args, **kwargs)
        work = work_of(result)
        if work is not None:
            self.listener.watch(work, lambda end: self._ended(index, end))
        elif found.blocks:
            self._ended(index, time.monotonic())
        return result

    def _write(self, call: Call) -> int:
        recording = self.recording
        recording.rank, recording.world_size = _place(recording.rank, recording.world_size)
        index = len(recording.events)
        event = Collective(
            op=call.op,
            numel=call.numel,
            dtype=call.tensors[0].dtype if call.tensors else None,
            nbytes=call.nbytes,
            seq=index,
            rank=recording.rank,
            start=time.monotonic(),
            end=None,
            phase=self.tracker.phase(),
            group=call.group,
            peer=call.peer,
            shapes=tuple(tuple(tensor.shape) for tensor in call.tensors),
        )
        recording.events.append(event)
        return index

    def _ended(self, index: int, end: float) -> None:
        event = self.recording.events[index]
        if event.end is None:
            self.recording.events[index] = replace(event, end=end)

    def finish(self, profiled: ProfiledTimes) -> None:
        """Complete the recording: last ends, the profiler's times, the compute lane."""
        self.listener.settle()
        recording = self.recording
        recording.events[:] = profiled.apply(recording.events)
        known = [(event.start, event.end) for event in recording.events if event.end is not None]
        recording.spans[:] = compute_spans(recording.rank, self.ops, known)


def _place(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and world size: the process group's, else those given, else the launcher's."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if rank is not None and world_size is not None:
        return rank, world_size
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
