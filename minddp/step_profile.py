"""What one training step of a model needs, measured or published: input of the simulator."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from minddp.cost_model import require, require_count


@dataclass(frozen=True)
class StepProfile:
    """Parameters in the order of ``model.parameters()``, and when each gradient is ready.

    Attributes:
        param_bytes: size of each gradient, in bytes.
        ready_s: seconds from the start of backward until each gradient is ready.
        forward_s: seconds of the forward pass.
        optimizer_s: seconds of the optimizer step.
        backward_s: seconds of the whole backward pass; the last gradient ends it by default.
        name: for titles.
        source: where the numbers come from.
        param_names: one for each parameter, or none at all.

    Raises:
        ValueError: a negative size or time, lists that do not match, a gradient that is ready
            after the end of backward.
    """

    param_bytes: Sequence[float]
    ready_s: Sequence[float]
    forward_s: float = 0.0
    optimizer_s: float = 0.0
    backward_s: float | None = None
    name: str = "model"
    source: str = ""
    param_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in ("param_bytes", "ready_s", "param_names"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if self.backward_s is None:
            object.__setattr__(self, "backward_s", max(self.ready_s, default=0.0))
        self._check()

    def _check(self) -> None:
        count = len(self.param_bytes)
        require(count > 0, "param_bytes", "at least one parameter", self.param_bytes)
        for field in ("ready_s", "param_names"):
            found = len(getattr(self, field))
            fits = found == count or (field == "param_names" and found == 0)
            require(fits, field, f"as long as param_bytes ({count})", found)
        for field in ("forward_s", "backward_s", "optimizer_s"):
            value = getattr(self, field)
            require(0 <= value < math.inf, field, ">= 0 seconds", value)
        for i, (size, ready) in enumerate(zip(self.param_bytes, self.ready_s, strict=True)):
            require(0 <= size < math.inf, f"param_bytes[{i}]", ">= 0 bytes", size)
            in_backward = 0 <= ready <= self.backward_seconds
            require(in_backward, f"ready_s[{i}]", f"in 0..{self.backward_seconds} s", ready)

    @property
    def backward_seconds(self) -> float:
        """``backward_s``, which is never None once the profile exists."""
        return self.backward_s or 0.0

    @property
    def total_bytes(self) -> float:
        return sum(self.param_bytes)

    @property
    def compute_s(self) -> float:
        """Seconds of one step without any communication."""
        return self.forward_s + self.backward_seconds + self.optimizer_s

    @classmethod
    def even(
        cls,
        total_bytes: float,
        backward_s: float,
        count: int,
        *,
        forward_s: float = 0.0,
        optimizer_s: float = 0.0,
    ) -> "StepProfile":
        """``count`` equal parameters whose gradients come, last one first, at a steady rate."""
        require_count("count", count)
        ready = tuple(backward_s * ((count - i) / count) for i in range(count))
        sizes = (total_bytes / count,) * count
        return cls(sizes, ready, forward_s, optimizer_s, backward_s, name="even")

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "StepProfile":
        return cls(**json.loads(text))


def load_profile(name: str | Path) -> StepProfile:
    """A profile that ships with the package (``"resnet50"``, ``"bert_base"``) or a JSON file.

    Raises:
        ValueError: no such profile.
    """
    if isinstance(name, Path):
        return StepProfile.from_json(name.read_text())
    folder = resources.files("minddp") / "data"
    shipped = sorted(f.name.removesuffix(".json") for f in folder.iterdir())
    require(name in shipped, "name", f"one of {shipped} or the Path of a file", name)
    return StepProfile.from_json((folder / f"{name}.json").read_text())
