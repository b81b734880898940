"""Find the part of an object that cannot be sent to another process, and name it."""

from __future__ import annotations

import functools
import inspect
import io
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from minddp._launch.travel import CannotTravel, TravelPickler

MAX_DEPTH = 12
WAY_OUT = (
    "Make it inside the function that the ranks run, or put it into a module (a file beside "
    "the notebook, written with %%writefile) and import it there."
)


def pickling_error(obj: Any, outward: bool) -> Exception | None:
    """The error of pickling `obj`, or None if it can be pickled."""
    try:
        TravelPickler(io.BytesIO(), outward).dump(obj)
    except Exception as error:
        return error
    return None


def describe(name: str, obj: Any, outward: bool) -> str:
    """Say which part of `obj`, called `name`, cannot be sent, of what type it is, and why.

    `outward`: it was on its way to the ranks, and the way out is named too.
    """
    path, part, error = innermost(name, obj, outward)
    if isinstance(error, CannotTravel):
        return f"{path} is {error}."
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    way_out = f" {WAY_OUT}" if outward else ""
    return f"{path} is of type {type_name(part)}, which cannot be pickled ({reason}).{way_out}"


def type_name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")


def innermost(name: str, obj: Any, outward: bool) -> tuple[str, Any, Exception | None]:
    """Walk from `obj` to the smallest part of it that fails: its path, itself, its error."""
    error = pickling_error(obj, outward)
    user = ""
    for _ in range(MAX_DEPTH):
        if isinstance(error, CannotTravel) and error.obj is obj:
            break
        for part_name, part in parts(name, obj):
            part_error = pickling_error(part, outward)
            if part_error is not None:
                if isinstance(obj, types.FunctionType):
                    user = f", which {obj.__name__} uses,"
                name, obj, error = part_name, part, part_error
                break
        else:
            break
    return f"{name}{user}", obj, error


def parts(name: str, obj: Any) -> Iterator[tuple[str, Any]]:
    """The objects that `obj` is made of, each with the expression that leads to it."""
    if isinstance(obj, Mapping):
        yield from ((f"{name}[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from ((f"{name}[{i}]", value) for i, value in enumerate(obj))
    elif isinstance(obj, types.MethodType):
        yield f"{name}.__self__", obj.__self__
    elif isinstance(obj, functools.partial):
        yield f"{name}.func", obj.func
        yield f"{name}.args", obj.args
        yield f"{name}.keywords", obj.keywords
    elif isinstance(obj, types.FunctionType):
        yield from used_by(obj)
    elif isinstance(obj, torch.nn.Module):
        yield from ((f"{name}.{key}", value) for key, value in obj.named_children())
        own = {k: v for k, v in vars(obj).items() if k != "_modules"}
        yield from ((f"{name}.{key}", value) for key, value in own.items())
    elif hasattr(obj, "__dict__") and not isinstance(obj, (type, types.ModuleType)):
        yield from ((f"{name}.{key}", value) for key, value in vars(obj).items())


def used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The global and enclosing names that a function uses, and its default values."""
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    yield from variables.nonlocals.items()
    yield from variables.globals.items()
    yield from (("a default value", value) for value in function.__defaults__ or ())


def refuse_argument(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> TypeError:
    """The error to raise when `fn(*args, **kwargs)` cannot be sent to the ranks."""
    for title, name, value in named_arguments(fn, args, kwargs):
        if pickling_error(value, outward=True) is not None:
            reason = describe(name, value, outward=True)
            return TypeError(f"{title} cannot be sent to the ranks: {reason}")
    return TypeError(f"the function and its arguments cannot be sent to the ranks: {error}")


def named_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """The function and its arguments: title, short name, value."""
    name = getattr(fn, "__name__", type(fn).__name__)
    yield f"the function {name}", name, fn
    try:
        arguments = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {f"argument {i}": value for i, value in enumerate(args)} | kwargs
    yield from ((f"the argument `{key}`", key, value) for key, value in arguments.items())
