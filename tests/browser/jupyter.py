"""A JupyterLab of its own and a headless Chromium, for tests that look at a real page."""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Every cell is in the page, also those that one would have to scroll to.
    "notebook-extension/tracker": {"windowingMode": "none"},
}
START_LIMIT = 60  # seconds


@contextlib.contextmanager
def jupyter_lab(folder, state):
    """Serve `folder` on a free port, settings and run files in `state`; yields (url, token)."""
    token = secrets.token_hex(16)
    for name, values in SETTINGS.items():
        file = Path(state) / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    env = {**os.environ, **{name: str(Path(state) / sub) for name, sub in own.items()}}
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    options += [f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter", "lab", *options, f"--ServerApp.root_dir={folder}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    try:
        yield _address(server), token
    finally:
        server.terminate()  # Jupyter shuts its kernels down on SIGTERM
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def _address(server):
    """Read the server's log until it says where it listens, then keep emptying the pipe."""
    found, seen, log = threading.Event(), [], []

    def read():
        for line in server.stdout:
            log.append(line)
            if match := re.search(r"http://127\.0\.0\.1:[1-9]\d*/", line):
                seen.append(match[0])
                found.set()
        found.set()

    threading.Thread(target=read, daemon=True).start()
    found.wait(START_LIMIT)
    if not seen:
        raise RuntimeError("JupyterLab did not start:\n" + "".join(log[-20:]))
    return seen[0]


@contextlib.contextmanager
def page_of_browser(profile):
    """A page in headless Chromium with a fresh profile; what its console says is collected."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile),
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport={"width": 1200, "height": 1600},
        )
        try:
            yield context.pages[0]
        finally:
            context.close()


def open_notebook(page, url, token, name):
    """Open a notebook and wait until its kernel can be asked to run something."""
    page.goto(f"{url}lab/tree/{name}?token={token}")
    page.wait_for_function("window.jupyterapp !== undefined", timeout=60_000)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_function(
        "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=60_000,
    )


def run_all_cells(page):
    """Clear every output, run all cells, and return the code cells as the page now holds them."""
    page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    cells = page.evaluate("window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")
    return [cell for cell in cells if cell["cell_type"] == "code"]
