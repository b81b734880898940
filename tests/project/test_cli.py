"""The command line: what it dispatches to, and what it says when it cannot."""

import sys
import types

import pytest

from minddp import cli


@pytest.fixture
def fake_command(monkeypatch):
    """`minddp fake` with a module of our choice behind it."""

    def install(module):
        monkeypatch.setitem(cli.COMMANDS, "fake", ("fake_module", "for this test"))
        monkeypatch.setitem(sys.modules, "fake_module", module)

    return install


def test_arguments_and_exit_code_go_through(fake_command):
    module = types.ModuleType("fake_module")
    module.main = lambda argv: 3 if argv == ["--steps", "5"] else 9
    fake_command(module)
    assert cli.main(["fake", "--steps", "5"]) == 3
    module.main = lambda argv: None
    assert cli.main(["fake"]) == 0


def test_help_names_every_command(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in cli.COMMANDS)
    assert cli.main([]) == 2


def test_unknown_command_is_told_the_nearest(capsys):
    assert cli.main(["docter"]) == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err
    assert cli.main(["xyz"]) == 2
    assert "choose from doctor, demo, bench, check" in capsys.readouterr().err


def test_a_command_that_is_not_there_yet(capsys, fake_command, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "ghost", ("minddp.no_such_module", "nothing"))
    assert cli.main(["ghost"]) == 2
    assert "has no 'ghost' yet" in capsys.readouterr().err
    fake_command(types.ModuleType("fake_module"))  # a module without main
    assert cli.main(["fake"]) == 2
    assert "has no 'fake' command yet" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(capsys, monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "more", ("needs_more", "for this test"))
    assert cli.main(["more"]) == 2
    assert "'no_such_package'" in (err := capsys.readouterr().err) and "[course]" in err
