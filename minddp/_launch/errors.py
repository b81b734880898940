"""What `launch` raises when a rank fails or does not answer."""

from __future__ import annotations

import signal as signals
from typing import Any

from minddp._launch.trace import CollectiveCall


class LaunchError(RuntimeError):
    """A launch that gave no results. Its attributes are those of the two classes below."""

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        vars(self).update(attributes)

    def __reduce__(self) -> Any:  # so that it can itself be pickled
        return restore, (type(self), self.args[0], vars(self))


def restore(kind: type[LaunchError], message: str, attributes: dict[str, Any]) -> LaunchError:
    return kind(message, **attributes)


class RankFailed(LaunchError):
    """A rank raised, ended without returning, or was killed.

    Attributes:
        rank: the rank that failed first; a broken connection to a peer is not the cause.
        summary: one line, "rank 1 failed: ValueError: boom".
        exitcode: of its process; negative where a signal ended it.
        signal: that signal (`signal.Signals`), or None.
        traceback: its own traceback from the function on; after a crash, its Python stack.
        output: what it printed.
        others: what the other ranks did, by rank: "was stopped because rank 1 failed".
    """

    rank: int
    summary: str
    exitcode: int
    signal: signals.Signals | None
    traceback: str
    output: str
    others: dict[int, str]


class LaunchTimeout(LaunchError):
    """Ranks gave no answer in time, or wait for a peer that has returned already.

    Attributes:
        summary: one line, which says what each rank does.
        stacks: the Python stack of each rank that has not returned, by rank.
        collectives: the collective that each rank waits in, or else its last one, by rank; None
            if it has begun none. They are counted from 0. (torch records them since 2.9; the
            stack still names the call with an older one. send and recv are not recorded.)
        outputs: what each rank printed.
    """

    summary: str
    stacks: dict[int, str]
    collectives: dict[int, CollectiveCall | None]
    outputs: list[str]


for public in (RankFailed, LaunchTimeout):
    public.__module__ = "minddp.launcher"
