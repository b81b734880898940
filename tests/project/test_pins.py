"""constraints.txt, pyproject.toml and environment.yml say the same, and it is what runs here."""

import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read TOML by itself")


def pins():
    """{normalised name: version} of constraints.txt; a line of any other form is an error."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line)
            assert match, f"constraints.txt: {line!r} is not a plain pin"
            found[normal(match[1])] = match[2]
    return found


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def conda_specs():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def pip_lines():
    return next(entry["pip"] for entry in conda_specs() if isinstance(entry, dict))


def pip_pins():
    lines = [line for line in pip_lines() if not line.startswith("-")]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def asked_for_by_name():
    """What the package, the course and the development tools ask for, with their ranges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["course"] + extras["dev"]
    return {normal(r.name): r for r in map(Requirement, wanted)}


def test_environment_repeats_the_pins_of_constraints():
    assert pip_pins() == {name: pins()[name] for name in asked_for_by_name()}


def test_environment_holds_the_rest_to_constraints_and_installs_the_package():
    assert pip_lines()[0] == "--constraint constraints.txt"
    assert pip_lines()[-1] == "--editable ."


def test_pins_are_within_the_ranges_that_the_package_declares():
    for name, requirement in asked_for_by_name().items():
        assert requirement.specifier.contains(pins()[name]), f"{requirement} against {pins()[name]}"


def test_conda_specs_parse_and_name_the_tested_python():
    rattler = pytest.importorskip("rattler", reason="py-rattler is not installed")
    specs = [rattler.MatchSpec(entry) for entry in conda_specs() if isinstance(entry, str)]
    by_name = {spec.name.normalized: str(spec.version) for spec in specs}
    assert set(by_name) == {"python", "pip"}
    tested = re.search(r"\(Python ([\d.]+)\)", (ROOT / "constraints.txt").read_text())[1]
    assert by_name["python"] in (tested, f"{tested}.*", f"={tested}")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the pins are for Python 3.11 and newer")
def test_the_tests_run_with_exactly_these_versions():
    differ = {}
    for name, wanted in pins().items():
        try:
            here = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            here = "absent"
        if here != wanted:
            differ[name] = f"pinned {wanted}, here {here}"
    assert not differ
    check = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120
    )
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.fixture
def fresh_environment(tmp_path):
    """The Python of a new environment, which is too large to be left behind."""
    venv.create(tmp_path / "fresh", with_pip=True)
    yield tmp_path / "fresh" / "bin" / "python"
    shutil.rmtree(tmp_path / "fresh")


@pytest.mark.install
@pytest.mark.timeout(1800)
def test_the_pip_section_installs_into_a_fresh_environment(fresh_environment, tmp_path):
    """What conda hands to pip, in its order, in a new environment: minutes, and the network."""
    requirements = tmp_path / "requirements.txt"
    lines = [line.replace("constraints.txt", str(ROOT / "constraints.txt")) for line in pip_lines()]
    lines[-1] = f"--editable {ROOT}"
    requirements.write_text("\n".join(lines) + "\n")

    def run(*args):
        subprocess.run([fresh_environment, *args], check=True, timeout=1500, cwd=tmp_path)

    run("-m", "pip", "--disable-pip-version-check", "install", "-q", "-r", requirements)
    run("-m", "pip", "check")
    run("-c", "import minddp, matplotlib, ipywidgets, jupyterlab, nbval")
