"""Not installed, half installed, broken: which of the three, and why."""

import sys

import pytest

from minddp.backends import BackendUnavailable, DummyBackend


def backend_for(module):
    return type("Fake", (DummyBackend,), {"BACKEND_MODULE_NAME": module, "BACKEND_NAME": "Fake"})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make importable packages: ``package("name", init, part=...)``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(name, source, **parts):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
        for part, text in parts.items():
            (tmp_path / name / f"{part}.py").write_text(text)
        made.append(name)
        return name

    yield make
    for name in list(sys.modules):
        if name.split(".")[0] in made:
            del sys.modules[name]


CASES = {
    "dependency missing": (
        ("import minddp_no_such_dependency", {}),
        "",
        "half installed",
        "installed but failed to import, because minddp_no_such_dependency is missing",
    ),
    "part not built": (
        ("", {"torch": "raise ImportError('extension was not built')"}),
        ".torch",
        "half installed",
        "its part fake_package.torch is not, or was not built (ImportError: extension was not",
    ),
    "part not there": (
        ("", {}),
        ".torch",
        "half installed",
        "its part fake_package.torch is not, or was not built (ModuleNotFoundError",
    ),
    "shared library": (
        ("raise ImportError('libcudart.so.12: cannot open')", {}),
        "",
        "broken",
        "installed but failed to import: ImportError: libcudart.so.12",
    ),
    "package broken, part asked for": (
        ("raise ImportError('libmpi.so.40')", {"torch": ""}),
        ".torch",
        "broken",
        "installed but failed to import: ImportError: libmpi.so.40",
    ),
    "no CUDA": (
        ("raise RuntimeError('CUDA_HOME does not exist')", {}),
        "",
        "broken",
        "installed but failed to import: RuntimeError: CUDA_HOME does not exist",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_installed_but_of_no_use(case, package):
    (source, parts), part, state, message = CASES[case]
    backend = backend_for(package("fake_package", source, **parts) + part)()
    assert backend.has_backend()
    assert "fake_package" not in sys.modules  # asking imports nothing
    with pytest.raises(BackendUnavailable) as caught:
        backend.initialize()
    assert caught.value.state == state
    assert message in str(caught.value)
    assert "Fake backend" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert not backend.is_initialized()


@pytest.mark.parametrize("module", ["minddp_no_such_package", "minddp_no_such_package.torch"])
def test_not_installed(module):
    backend = backend_for(module)()
    assert not backend.has_backend()
    with pytest.raises(BackendUnavailable, match="not installed: pip install") as caught:
        backend.initialize()
    assert caught.value.state == "not installed"
    assert isinstance(caught.value, ImportError)


def test_a_backend_may_say_how_it_is_installed():
    fake = backend_for("minddp_no_such_package")
    fake.INSTALL_HINT = "ask the operator"
    with pytest.raises(BackendUnavailable, match="ask the operator"):
        fake.import_backend()


def test_installed_and_good(package):
    backend = backend_for(package("fake_package", "", torch="x = 1") + ".torch")
    assert backend.import_backend().x == 1
    assert backend().initialize().is_initialized()
