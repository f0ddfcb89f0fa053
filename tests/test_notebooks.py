"""The example notebook in a real kernel: what each cell shows, by its mime type."""

import shutil
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")
pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "trimtab_in_five_minutes.ipynb"


def shown(cell: Any) -> dict[str, str]:
    """Everything that a cell displays, by mime type."""
    return {kind: text for one in cell.outputs for kind, text in one.get("data", {}).items()}


def test_the_notebook_runs_and_shows_cards_a_curve_and_a_post_mortem(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "run.csv", tmp_path)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    report = shown(cells["diagnose"])
    assert "<svg" in report["text/html"]
    assert report["text/plain"].startswith("<RunReport of run.csv: ")
    assert "image/png" in shown(cells["plot"])
    assert "<table" in shown(cells["to-frame"])["text/html"]
    assert "trimtab protects AdamW" in shown(cells["guard"])["text/html"]
    assert "1 step discarded" in shown(cells["report"])["text/html"]
    assert "## In short" in shown(cells["post-mortem"])["text/markdown"]


def test_the_notebook_is_committed_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert cell.cell_type == "markdown" or not (cell.outputs or cell.execution_count)
