"""Notebook 00 in JupyterLab, in a real browser: everything runs, the timelines can be seen."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.browser.jupyter import (
    CHROMIUM,
    jupyter_lab,
    open_notebook,
    page_of_browser,
    run_all_cells,
)

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start_here.ipynb"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]


def test_all_cells_run_and_the_timelines_are_shown(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(NOTEBOOK, folder)  # running a notebook in a browser may save it
    complaints = []
    with (
        jupyter_lab(folder, tmp_path / "state") as (url, token),
        page_of_browser(tmp_path / "profile") as page,
    ):
        page.on("pageerror", lambda error: complaints.append(str(error)))
        open_notebook(page, url, token, NOTEBOOK.name)
        cells = run_all_cells(page)
        outputs = [output for cell in cells for output in cell["outputs"]]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]

        drawing = next(cell for cell in cells if "lab.timeline" in cell["source"])
        assert any("image/png" in output.get("data", {}) for output in drawing["outputs"])
        picture = page.locator(".jp-OutputArea-output img").last
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        assert box["width"] > 400 and box["height"] > 100
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        page.screenshot(path=tmp_path / "page.png")
    assert not complaints
