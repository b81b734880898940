"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what was found, and the way out if it is not well."""

    name: str
    status: Status
    found: str
    advice: str = ""
