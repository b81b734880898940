"""Where in the training step are we? Asked whenever an operator runs.

Autograd tells about itself: a graph task is running, and a node is being visited. The second is
what tells "gradients are still to come" from "backward is about to return": hooks on parameters
run while their node is visited, final callbacks run when no node is left.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


class PhaseTracker:
    """Follows forward, backward and optimizer of one process while it is entered."""

    def __init__(self) -> None:
        self._depth = 0  # how many modules' forwards we are in
        self._stepping = False
        self._last = ""  # what ran last: "forward", "backward", "optimizer"
        self._hooks = ExitStack()

    def __enter__(self) -> PhaseTracker:
        for handle in (
            register_module_forward_pre_hook(self._enter_forward),
            # always_call: a forward that raises is left, too
            register_module_forward_hook(self._leave_forward, always_call=True),
            register_optimizer_step_pre_hook(self._enter_step),
            register_optimizer_step_post_hook(self._leave_step),
        ):
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hooks.close()

    def phase(self) -> str:
        """One of `minddp.recording.PHASES`."""
        if self._in_backward():
            visiting = torch._C._current_autograd_node() is not None
            return "backward" if visiting else "end_of_backward"
        if self._stepping:
            return "optimizer"
        if self._depth:
            return "forward"
        return "after_backward" if self._last == "backward" else "outside"

    def compute_kind(self) -> str:
        """What the compute lane shows: "forward", "backward", "optimizer" or "other"."""
        if self._in_backward():
            return "backward"
        if self._stepping:
            return "optimizer"
        # The loss, computed from what the model returned, is forward, too.
        return "forward" if self._depth or self._last == "forward" else "other"

    def _in_backward(self) -> bool:
        """Is a `backward()` of this thread running? It ends what ran before it."""
        if torch._C._current_graph_task_id() == -1:
            return False
        self._last, self._stepping = "backward", False
        return True

    def _enter_forward(self, *_: Any) -> None:
        self._depth += 1
        self._last, self._stepping = "forward", False

    def _leave_forward(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _enter_step(self, *_: Any) -> None:
        self._last, self._stepping = "optimizer", True

    def _leave_step(self, *_: Any) -> None:
        self._stepping = False
