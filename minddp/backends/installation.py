"""Is a package missing, there only in part, or broken? Three answers, three ways out."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


class BackendUnavailable(ImportError):
    """A backend cannot be used. `state` is "not installed", "half installed" or "broken"; the
    error of the import, if there was one, is the `__cause__`."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


def is_installed(module: str) -> bool:
    """Can the top-level package of `module` be found? Nothing is imported."""
    package = module.split(".")[0]
    if package in sys.modules:
        return sys.modules[package] is not None
    return importlib.util.find_spec(package) is not None


def import_package(backend: str, module: str, hint: str = "") -> ModuleType:
    """Import `module`, which may be a part of a package such as "horovod.torch".

    Args:
        backend: whose module it is, for the message.
        hint: how to install it, for the message.

    Raises:
        BackendUnavailable: with the state and the cause.
    """
    package = module.split(".")[0]
    hint = hint or f"pip install {package}"
    if not is_installed(module):
        raise BackendUnavailable(
            f"the {backend} backend needs the package {package}, which is not installed: {hint}",
            "not installed",
        )
    for name in (package, module):
        try:
            imported = importlib.import_module(name)
        except Exception as error:
            raise _unavailable(backend, package, name, hint, error) from error
    return imported


def _unavailable(
    backend: str, package: str, name: str, hint: str, error: Exception
) -> BackendUnavailable:
    cause = f"{type(error).__name__}: {error}"
    start = f"the {backend} backend cannot be used: {package} is installed"
    if name != package and isinstance(error, ImportError):
        return BackendUnavailable(
            f"{start}, but its part {name} is not, or was not built ({cause}): {hint}",
            "half installed",
        )
    if isinstance(error, ModuleNotFoundError):
        return BackendUnavailable(
            f"{start} but failed to import, because {error.name} is missing ({cause}): "
            f"install that, or all anew: {hint}",
            "half installed",
        )
    return BackendUnavailable(
        f"{start} but failed to import: {cause}. It is broken for this machine: see the cause "
        f"above, or install it anew: {hint}",
        "broken",
    )
