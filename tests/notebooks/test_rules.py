"""Every notebook keeps the rules, and every rule catches the notebook that breaks it."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebooks.rules import problems

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_the_rules(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert list(problems(notebook)) == []


def test_the_course_begins_with_00_and_01():
    assert [path.name[:2] for path in NOTEBOOKS[:2]] == ["00", "01"]


KERNEL = {"name": "python3", "display_name": "Python 3"}


def good():
    folded = "1. Why?\n\n<details><summary>Answer</summary>Because.</details>\n"
    cells = [
        new_markdown_cell("# Title"),
        new_code_cell("WORLD_SIZE = 2  # change me", execution_count=1),
        new_code_cell("lab.timeline(x)", execution_count=2, outputs=[text("fine")]),
        new_markdown_cell("## Questions\n" + folded * 3),
        new_markdown_cell("## What you now know\n1. a\n2. b\n3. c"),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": KERNEL})


def text(words, name="stdout"):
    return new_output("stream", name=name, text=words)


def picture(repr_of_it):
    return new_output("display_data", data={"image/png": "AAAA", "text/plain": repr_of_it})


def output(*outputs):
    return lambda nb: nb.cells[2].update(outputs=list(outputs))


def source(words):
    return lambda nb: nb.cells[2].update(source=words)


def prose(words):
    return lambda nb: nb.cells[0].update(source=words)


def tags(cell, *names):
    return lambda nb: nb.cells[cell].metadata.update(tags=list(names))


def before(*cells):
    return lambda nb: nb.update(cells=[*cells, *nb.cells])


def both(*changes):
    return lambda nb: [change(nb) for change in changes]


def test_the_good_notebook_is_good():
    assert list(problems(good())) == []


BREACHES = {
    "kernel": (lambda nb: nb.metadata.kernelspec.update(name="venv"), "not 'python3'"),
    "never run": (lambda nb: nb.cells[2].update(execution_count=None), "execution counts"),
    "out of order": (lambda nb: nb.cells[1].update(execution_count=3), "execution counts"),
    "no world size": (lambda nb: nb.cells[1].update(source="n = 2"), "WORLD_SIZE = 2"),
    "long start": (before(*[new_markdown_cell("x\n" * 8)] * 4), "one screen"),
    "no questions": (lambda nb: nb.cells.pop(3), "0 questions"),
    "no summary": (lambda nb: nb.cells.pop(4), "What you now know"),
    "long prose": (prose("line\n" * 9), "9 lines of prose"),
    "long line": (prose("x" * 900), "9 lines of prose"),
    "tag on prose": (tags(0, "nbval-skip"), "a tag on prose"),
    "other tag": (tags(2, "nbval-skip"), "only nbval-ignore-output"),
    "tag without time": (both(source("print(1)"), tags(2, "nbval-ignore-output")), "no time"),
    "comment": (source("# NBVAL_IGNORE_OUTPUT\nprint(1)"), "nbval comment"),
    "interact": (source("interact(draw, n=3)"), "stall"),
    "stderr": (output(text("oops", "stderr")), "stored stderr"),
    "error": (output(new_output("error", ename="E", evalue="e", traceback=[])), "stored error"),
    "path": (output(text("saved in /tm" + "p/x")), "a path"),
    "pid": (output(text("pid 4321")), "a process id"),
    "figure": (output(picture("<Figure size 640x480 with 1 Axes>")), "a stray repr"),
    "address": (output(text("<function f at 0x7f01aa>")), "a stray repr"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_every_rule_catches_its_breach(name):
    breach, words = BREACHES[name]
    notebook = good()
    breach(notebook)
    assert any(words in problem for problem in problems(notebook)), list(problems(notebook))
