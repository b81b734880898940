"""Take the pictures of README.md out of the stored notebooks, so that they are never drawn twice.

`make notebooks` runs this after it has run the notebooks.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The last picture of the notebook on the left becomes the file on the right.
PICTURES = {"notebooks/00_start_here.ipynb": "docs/overlap.png"}


def last_picture(notebook: Path) -> bytes:
    """The PNG bytes of the last picture that a notebook has stored."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    if not pictures:
        raise SystemExit(f"{notebook} has stored no picture: run `make notebooks`")
    return base64.b64decode("".join(pictures[-1]))


for source, target in PICTURES.items():
    (ROOT / target).write_bytes(last_picture(ROOT / source))
    print(f"{target} from {source}")
