"""The notebooks in `examples/notebooks` run from the first cell to the last, in a kernel as JupyterLab starts it."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples/notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    reports = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert any('aria-label="flatout ' in report for report in reports)
    if kept := os.environ.get("FLATOUT_EXECUTED_NOTEBOOKS"):  # a folder, to look at them in JupyterLab
        Path(kept).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, Path(kept) / path.name)
