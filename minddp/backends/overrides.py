"""Does a class override what an abstract class asks for? Looked at when the class is made.

`abc.ABC` by itself refuses only the first *instance*, and says nothing of a method that is there
under a mistyped name.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any


def check_overrides(cls: type, base: type) -> None:
    """Raise TypeError with all that is wrong with `cls` as a complete subclass of `base`."""
    twins = [n for n, m in vars(base).items() if getattr(m, "__isabstractmethod__", False)]
    wrong = [
        f"{name} is not set to a name"
        for name in ("BACKEND_MODULE_NAME", "BACKEND_NAME")
        if not isinstance(getattr(cls, name, None), str) or not getattr(cls, name)
    ]
    missing = [n for n in twins if getattr(getattr(cls, n), "__isabstractmethod__", False)]
    wrong += [f"{name}() is missing" for name in missing]
    wrong += _mistyped(cls, base, twins)
    for name in twins:
        if name.lstrip("_") in vars(cls):
            wrong.append(f"{name.lstrip('_')}() is the public method; override its twin {name}()")
        if name in vars(cls):
            wrong += _other_parameters(name, vars(cls)[name], vars(base)[name])
    if wrong:
        raise TypeError(f"class {cls.__name__} is no complete {base.__name__}: {'; '.join(wrong)}")


def _mistyped(cls: type, base: type, twins: list[str]) -> list[str]:
    """Names of the class that look like a twin which the class does not have itself."""
    absent = [name for name in twins if name not in vars(cls)]
    own = [name for name in vars(cls) if name.startswith("_") and not hasattr(base, name)]
    found = []
    for name in own:
        near = difflib.get_close_matches(name, absent, n=1, cutoff=0.85)
        if near and callable(vars(cls)[name]):
            found.append(f"{name}() overrides nothing; is it to be {near[0]}()?")
    return found


def _other_parameters(name: str, method: Any, original: Any) -> list[str]:
    """A renamed parameter would break calls by keyword, so names must be equal."""
    if not inspect.isfunction(method):
        return []
    given, wanted = (list(inspect.signature(m).parameters) for m in (method, original))
    if given == wanted:
        return []
    return [f"{name}({', '.join(given)}) must be {name}({', '.join(wanted)})"]
