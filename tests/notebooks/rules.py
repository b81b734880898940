"""The rules that a notebook of the course keeps, as far as a program can check them.

`problems(notebook)` takes a notebook (nbformat 4) and returns one sentence for each breach.
"""

import math
import re

ALLOWED_TAG = "nbval-ignore-output"
MEASURES_TIME = re.compile(r"timeline|perf_counter|monotonic|seconds|profile")
NOT_FOR_STORED_OUTPUT = {
    "a path of one machine": re.compile(r"(?<![\w.])/(tmp|root|home|work|usr|var|opt)/|[A-Z]:\\\\"),
    "a process id": re.compile(r"\bpid\W{1,3}\d+"),
    "a stray repr": re.compile(r"<Figure |Text\(0|<matplotlib|\bat 0x[0-9a-f]{6,}"),
}
STALLS_UNDER_NBVAL = re.compile(r"\binteract(ive)?\(|\bOutput\(")
LINES_OF_PROSE = 8
LINES_BEFORE_FIRST_CODE = 25


def problems(notebook):
    cells = notebook.cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    yield from _frame(notebook, cells, code)
    for number, cell in enumerate(cells):
        where = f"cell {number}"
        if cell.cell_type == "markdown":
            yield from _prose(where, cell)
        elif cell.cell_type == "code":
            yield from _source(where, cell)
            yield from _outputs(where, cell)


def _frame(notebook, cells, code):
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"the kernel is {kernel!r}, not 'python3'"
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"execution counts are {counts}: run all cells from the top, once"
    if not code or not re.match(r"WORLD_SIZE = 2\b", code[0].source):
        yield "the first code cell does not begin with the line WORLD_SIZE = 2"
    before = cells[: cells.index(code[0])] if code else []
    if sum(_lines(cell.source) for cell in before) > LINES_BEFORE_FIRST_CODE:
        yield "more than one screen of prose before the first code cell"
    questions = "\n".join(c.source for c in cells if c.cell_type == "markdown").count("<details>")
    if not 3 <= questions <= 5:
        yield f"{questions} questions with an answer that folds open, not 3 to 5"
    last = cells[-1].source if cells else ""
    if "What you now know" not in last or len(re.findall(r"^\d\. ", last, re.M)) != 3:
        yield "the last cell is not 'What you now know' in three numbered lines"


def _lines(text):
    """Lines as they show at 100 characters, without blank ones and folded answers."""
    text = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    return sum(math.ceil(len(line) / 100) for line in text.splitlines() if line.strip())


def _prose(where, cell):
    if "<details>" not in cell.source and _lines(cell.source) > LINES_OF_PROSE:
        yield f"{where}: {_lines(cell.source)} lines of prose, more than {LINES_OF_PROSE}"
    if cell.metadata.get("tags"):
        yield f"{where}: a tag on prose"


def _source(where, cell):
    tags = cell.metadata.get("tags", [])
    if tags not in ([], [ALLOWED_TAG]):
        yield f"{where}: tags {tags}; only {ALLOWED_TAG} is allowed"
    if tags and not MEASURES_TIME.search(cell.source):
        yield f"{where}: not compared ({ALLOWED_TAG}), though it measures no time"
    if re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source):
        yield f"{where}: an nbval comment; use the tag"
    if STALLS_UNDER_NBVAL.search(cell.source):
        yield f"{where}: interact or an Output widget, which stall under nbval"


def _outputs(where, cell):
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"{where}: a stored error"
        if output.get("name") == "stderr":
            yield f"{where}: stored stderr"
        texts = [output.get("text", "")]
        texts += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
        for what, pattern in NOT_FOR_STORED_OUTPUT.items():
            if match := pattern.search("\n".join(texts)):
                yield f"{where}: {what} in a stored output: {match[0]!r}"
