"""The shape of the package: small files, light imports, arrows that go downwards."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "minddp"
FILES = sorted(PACKAGE.rglob("*.py"))

# At the top stands what uses the rest; nothing below may import it.
TOP = {"lab", "checks", "cli", "train", "trainer", "progress", "demo", "bench", "doctor"}
# What the ladder and its parts may not know.
LAUNCHING = {"launcher", "_launch", "backends", "factory", "recorder", "simulator"}
FORBIDDEN = {
    "lab": TOP - {"lab"},
    "ddp": TOP | LAUNCHING,
    "buckets": TOP | LAUNCHING | {"ddp", "collectives"},
    "collectives": TOP | LAUNCHING | {"ddp"},
    "timeline": TOP | LAUNCHING | {"ddp", "collectives", "buckets"},
    "recorder": TOP | {"launcher", "_launch", "backends", "factory", "ddp", "simulator"},
    "launcher": TOP | {"backends", "factory", "ddp", "simulator", "collectives"},
    "simulator": TOP | {"launcher", "_launch", "backends", "factory"},
    "factory": TOP | {"launcher", "_launch", "backends", "simulator"},
    "backends": TOP | {"launcher", "_launch", "simulator"},
}


def part_of(path):
    """The part of the package that a file belongs to: `minddp/ddp/base.py` is of `ddp`."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def package_of(path):
    return ("minddp", *path.relative_to(PACKAGE).parent.parts)


def stands_at_the_top(part):
    """`demo_report` belongs to `demo`, `train_config` to `train`."""
    return part.split("_")[0] in TOP


def imported_modules(path):
    """Absolute dotted names of everything of minddp that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "minddp")
        elif isinstance(node, ast.ImportFrom):
            base = package_of(path)[: len(package_of(path)) - node.level + 1] if node.level else ()
            name = ".".join((*base, *([node.module] if node.module else [])))
            if name.split(".")[0] == "minddp":
                yield from (f"{name}.{a.name}" for a in node.names)


def parts_imported(path):
    names = [name.split(".") for name in imported_modules(path)]
    return {name[1] for name in names if len(name) > 1} - {part_of(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_go_downwards(path):
    part = part_of(path)
    # minddp/__init__.py re-exports names; what it may load is the subject of the next tests.
    allowed_to_use_all = stands_at_the_top(part) or part == "__init__"
    forbidden = FORBIDDEN.get(part, set() if allowed_to_use_all else TOP)
    used = parts_imported(path)
    wrong = used & forbidden | {name for name in used if name.split("_")[0] in forbidden & TOP}
    assert not wrong, f"{path.relative_to(ROOT)} uses {sorted(wrong)}, which stand above it"


def test_the_import_reader_sees_every_form(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "ddp").mkdir()
    file = tmp_path / "ddp" / "x.py"
    file.write_text(
        "import minddp.lab\nfrom minddp import train\nfrom .. import cli\nfrom ..checks import ex\n"
        "from .base import y\nimport torch\ndef f():\n    from minddp.launcher import launch\n"
    )
    assert parts_imported(file) == {"lab", "train", "cli", "checks", "launcher"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_enough_to_read(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 220, f"{lines} lines: is there a second idea in it?"


LOOK_BEFORE_AND_AFTER = """
import sys, warnings
warnings.simplefilter("error")
import torch, torch.distributed, torch.nn.parallel
def state():
    watched = [torch.Tensor, torch.nn.Module, torch.distributed, torch.nn.parallel,
               torch.nn.parallel.DistributedDataParallel, torch.autograd, torch]
    return {(str(w), k): id(v) for w in watched for k, v in list(vars(w).items())
            if not type(v).__name__ == "module"}
threads, seed, before = torch.get_num_threads(), torch.initial_seed(), state()
import minddp
after = state()
print([k for k in before if after.get(k) != before[k]] + [k for k in after if k not in before])
print(threads == torch.get_num_threads(), seed == torch.initial_seed())
print(sorted(m for m in sys.argv[1:] if m in sys.modules))
"""


def test_import_minddp_is_light_and_leaves_torch_as_it_was():
    heavy = ["matplotlib", "ipywidgets", "IPython", "jupyterlab", "deepspeed", "horovod"]
    heavy += ["minddp.lab", "minddp.train", "minddp.doctor", "torch._dynamo"]
    result = subprocess.run(
        [sys.executable, "-c", LOOK_BEFORE_AND_AFTER, *heavy],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    changed, same, loaded = result.stdout.splitlines()
    assert changed == "[]"
    assert same == "True True"
    assert loaded == "[]"
