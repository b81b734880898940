"""README, notebooks and every tracked file: links resolve, commands exist, no foreign paths."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Written in two halves, so that this file does not find itself.
FOREIGN = re.compile(
    "|".join(
        [
            "/wor" + r"k/\w",
            "/ro" + "ot/",
            "/ho" + r"me/\w+/",
            "/op" + "t/(?:pypi|wheels)",
            "pypi" + r"\.org",
            "files\\.python" + "hosted",
            "download\\.pytorch" + r"\.org",
            "deb" + r"\.debian\.org",
        ]
    )
)


def tracked_files():
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout: no list of tracked files")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def markdown_of(path):
    """The prose of a Markdown file, or of the Markdown cells of a notebook."""
    text = path.read_text()
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def prose_files():
    return [p for p in tracked_files() if p.suffix in (".md", ".ipynb") and p.exists()]


def test_relative_links_resolve():
    broken = []
    for path in prose_files():
        text = re.sub(r"```.*?```", "", markdown_of(path), flags=re.S)
        links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
        for link in links:
            target = link.split("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken


def test_commands_in_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(
        re.findall(r"^make ([a-z-]+)", text, re.M)
    )
    assert {"lab", "test", "demo"} <= named <= targets

    from minddp.cli import COMMANDS

    subcommands = set(re.findall(r"minddp ([a-z]+)\b(?=[^.]*`)", text)) & set(COMMANDS)
    assert "doctor" in subcommands


def test_every_make_target_is_phony_and_sets_up_its_environment():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split())
    rules = dict(re.findall(r"^([a-z-]+):(.*?)(?:##.*)?$", text, re.M))
    assert set(rules) == phony
    free = {"help", "clean"}
    assert all("$(READY)" in needs for name, needs in rules.items() if name not in free)


def test_ci_runs_the_linters_and_ends_with_the_tests():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "not executable"
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert commands[0] == "make lint" and commands[-1] == "make test"
    assert script.read_text().rstrip().endswith("make test")


def test_no_tracked_file_names_a_path_of_one_machine_or_an_address_of_a_registry():
    found = []
    for path in tracked_files():
        if path.suffix in (".png", ".npz") or not path.exists():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := FOREIGN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found


@pytest.mark.parametrize(
    "line", ["see /wor" + "k/main/x", "/ro" + "ot/.cache", "pypi" + ".org/simple"]
)
def test_the_search_for_foreign_paths_finds_them(line):
    assert FOREIGN.search(line)
