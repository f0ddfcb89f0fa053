"""The example notebook in a real kernel: what each cell shows, by its mime type."""

import json
import re
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


def facts(cell: Any) -> tuple[Any, ...]:
    """What an output says, apart from its wording: its kinds, the steps, the sections."""
    kinds = shown(cell)
    said = kinds.get("text/plain", "") + kinds.get("text/markdown", "")
    steps = set(re.findall(r"step (\d+)", said))
    return set(kinds), steps, re.findall(r"(?m)^## .*", said), bool(re.search("[Ee]rror", said))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The code cells after a run in a new kernel, by id."""
    folder = tmp_path_factory.mktemp("notebook")
    shutil.copy(EXAMPLES / "run.csv", folder)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=180, resources={"metadata": {"path": str(folder)}}
    ).execute()
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def test_the_notebook_runs_and_shows_cards_a_curve_and_a_post_mortem(fresh: dict[str, Any]) -> None:
    report = shown(fresh["diagnose"])
    assert "<svg" in report["text/html"]
    assert report["text/plain"].startswith("<RunReport of run.csv: ")
    assert "image/png" in shown(fresh["plot"])
    assert "<table" in shown(fresh["to-frame"])["text/html"]
    assert "trimtab protects AdamW" in shown(fresh["guard"])["text/html"]
    assert "1 step discarded" in shown(fresh["report"])["text/html"]
    assert "## In short" in shown(fresh["post-mortem"])["text/markdown"]


def test_the_committed_outputs_say_what_the_code_says_today(fresh: dict[str, Any]) -> None:
    committed = nbformat.read(NOTEBOOK, as_version=4)
    for cell in committed.cells:
        if cell.cell_type == "code":
            assert facts(cell) == facts(fresh[cell.id]), cell.id
    text = json.dumps([cell.get("outputs") for cell in committed.cells])
    assert not re.search(r"/(tmp|home|root|work|Users)/", text)  # of the machine it was run on
