"""Every notebook runs with other world sizes than the stored one: one line changes.

`pytest --nbval` runs and compares world size 2. Here the notebooks follow one another in one
kernel for each of the other sizes, and nothing may fail or complain.
"""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
SETTING = "WORLD_SIZE = 2"


def with_world_size(path, world_size):
    """The notebook's code cells, with its one setting changed."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(SETTING in cell.source for cell in cells) == 1, f"{path.name}: set it once"
    for cell in cells:
        cell.source = cell.source.replace(SETTING, f"WORLD_SIZE = {world_size}")
        cell.metadata["from"] = path.stem
    return cells


@pytest.mark.timeout(900)  # a safety net for a loaded machine; a quiet one needs seconds
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_notebooks_run_with_world_size(world_size):
    paths = sorted(FOLDER.glob("[0-9]*.ipynb"))
    cells = [cell for path in paths for cell in with_world_size(path, world_size)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    for cell in cells:
        complaints = [o.text for o in cell.outputs if o.get("name") == "stderr"]
        assert not complaints, f"{cell.metadata['from']}: {cell.source}"
