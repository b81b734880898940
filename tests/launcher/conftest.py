"""After each launch nothing may be left, whatever became of its ranks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import minddp.launcher
from minddp._launch import forkserver


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test after which a process or a file of the launcher's lives on, or os.environ
    differs, or the next launch does not work."""
    scratch = tmp_path_factory.mktemp("scratch")
    usual, tempfile.tempdir = tempfile.tempdir, str(scratch)
    before = environment()
    try:
        yield
        assert environment() == before
        assert processes_left() == []
        assert files_left(scratch) == []
        assert minddp.launcher.launch(lambda: os.environ["RANK"], backend=None) == ["0", "1"]
    finally:
        tempfile.tempdir = usual


def environment() -> dict[str, str]:
    """Without what pytest sets for each test, and torch when its compiler is imported."""
    ignored = ("PYTEST", "TORCHINDUCTOR")
    return {key: value for key, value in os.environ.items() if not key.startswith(ignored)}


def processes_left() -> list[psutil.Process]:
    """All descendants, but for the fork server, which stays for the next launch."""
    descendants = psutil.Process().children(recursive=True)
    server = forkserver._server
    ours = [p for p in descendants if server is None or p.pid != server.process.pid]
    return list(psutil.wait_procs(ours, timeout=5)[1])


def files_left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]
