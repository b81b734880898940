"""The life of a backend: is its package there, initialize, shutdown, and all of it again."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import TypeVar

from minddp.backends.installation import import_package, is_installed
from minddp.backends.twins import BackendTwins

Self = TypeVar("Self", bound="Lifecycle")


class Lifecycle(BackendTwins):
    """The part of `DistributedBackend` that starts and stops; derive from that one."""

    _initialized = False

    @classmethod
    def has_backend(cls) -> bool:
        """Is the package installed? Imports nothing; whether it works, `import_backend` says."""
        return is_installed(cls.BACKEND_MODULE_NAME)

    @classmethod
    def import_backend(cls) -> ModuleType:
        """Import the backend's module. Raises BackendUnavailable (an ImportError), which tells
        "not installed", "half installed" and "broken" apart and carries the cause."""
        return import_package(cls.BACKEND_NAME, cls.BACKEND_MODULE_NAME, cls.INSTALL_HINT)

    def is_initialized(self) -> bool:
        """Has initialize() been called, and not shutdown() since?"""
        return self._initialized

    def initialize(self: Self) -> Self:
        """Find the other ranks. Again is no error and does nothing; if it fails, nothing is left.

        Raises:
            BackendUnavailable: the package is missing or does not work.
        """
        if not self._initialized:
            self.import_backend()
            try:
                self._initialize()
            except BaseException:
                with suppress(Exception):
                    self._shutdown()
                raise
            self._initialized = True
        return self

    def shutdown(self) -> None:
        """Leave the other ranks. Again is no error; initialize() may follow."""
        if self._initialized:
            self._initialized = False
            self._shutdown()

    def __enter__(self: Self) -> Self:
        return self.initialize()

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def require_init(self) -> None:
        """Raise RuntimeError if the backend is not initialised."""
        if not self._initialized:
            raise RuntimeError(
                f"the {self.BACKEND_NAME} backend is not initialised: call initialize() of this "
                f"{type(self).__name__} first, or use it in a with statement"
            )
