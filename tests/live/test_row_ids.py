"""Rows by their numbers in the data: from `record(row_ids=...)` to the file and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.observing import observe
from tests.kit.tiny import make_model
from tests.kit.user_loop import take_step, watching
from tests.live.test_batch_memory import BAD_ROW, BAD_STEP, BAD_TOKEN, losses_of, sgd
from typer.testing import CliRunner

import trimtab
from trimtab.cli.main import app
from trimtab.journal.batches.batch_report import BatchReport

ROWS, STEPS, LENGTH = 4, 100, 17


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A token file, and the order in which a run reads its rows; one row is one rare token."""
    random = np.random.default_rng(1)
    order = random.permutation(ROWS * STEPS)
    tokens = random.integers(0, 24, (ROWS * STEPS, LENGTH)).astype(np.uint16)
    tokens[order[BAD_STEP * ROWS + BAD_ROW]] = BAD_TOKEN
    path = tmp_path_factory.mktemp("data") / "train.npy"
    np.save(path, tokens.reshape(-1))
    np.save(path.with_name("order.npy"), order)
    return path, order


def train(run_dir: Path, path: Path, order: np.ndarray, ids: Any = None, **given: Any) -> None:
    """Train on the file in this order; `ids` makes row ids of the numbers of a batch's rows."""
    tokens = torch.from_numpy(np.load(path).reshape(-1, LENGTH).astype(np.int64))
    model = make_model()
    model.dropout.p = 0.0
    batches = [
        {"input_ids": tokens[chosen], "row_ids": torch.from_numpy(chosen + 10**9)}
        for chosen in order.reshape(STEPS, ROWS)
    ]
    with watching(run_dir, model=model, make=sgd, observer=False, **given) as run:
        for step in run.guard.steps(batches):
            (batch,) = step
            rows = losses_of(model, batch["input_ids"]).mean(dim=1)
            loss = rows.mean() * (5.0 if BAD_STEP <= step.number < BAD_STEP + 6 else 1.0)
            numbers = None if ids is None else ids(batch["row_ids"] - 10**9)
            take_step(run.guard, run.optimizer, loss, row_loss=rows, row_ids=numbers)
    observe(run_dir)


def call(*words: object) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, words)))


def test_an_incident_names_the_rows_and_the_files_have_them(
    data: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    path, order = data
    train(tmp_path, path, order, lambda ids: ids)
    number = int(order[BAD_STEP * ROWS + BAD_ROW])
    said = f"row {BAD_ROW} (in the data {number}) of the batch at position {BAD_STEP}"
    assert said in " ".join(call("diagnose", tmp_path).output.split())
    found = call("corpus", "order", path, "--rows", ROWS, "--length", LENGTH, "--run", tmp_path)
    assert found.exit_code == 1
    assert f"row {BAD_ROW}: {path}:{number * LENGTH}  rare tokens" in found.output
    assert "other tokens" not in found.output
    wrong = call("corpus", "order", path, "--rows", ROWS, "--length", LENGTH + 1, "--run", tmp_path)
    assert "other tokens are there" in wrong.output
    # A report from before there were ids.
    file = max((tmp_path / "trimtab" / "batches").glob("*.json"))
    saved = json.loads(file.read_text())
    for row in saved["rows"]:
        del row["row_id"]
    assert BatchReport.from_dict(saved).rows[0].row_id is None


def test_without_ids_the_order_of_the_run_finds_them(
    data: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    path, order = data
    train(tmp_path, path, order)
    options = ("--rows", ROWS, "--length", LENGTH, "--run", tmp_path)
    by = ("--by", path.with_name("order.npy"))
    found = call("corpus", "order", path, *options, *by)
    place = int(order[BAD_STEP * ROWS + BAD_ROW]) * LENGTH
    assert f"row {BAD_ROW}: {path}:{place}  rare tokens" in found.output
    assert "other tokens" not in found.output
    assert "other tokens are there" in call("corpus", "order", path, *options).output


@pytest.mark.parametrize(
    "ids",
    [
        lambda ids: ids.float(),
        lambda ids: "row 1",
        lambda ids: ids[:1],
    ],
)
def test_ids_that_are_none_cost_the_numbers_alone(
    ids: Any, data: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    path, order = data
    train(tmp_path, path, order, ids)
    report = trimtab.diagnose(tmp_path)
    (incident,) = report.incidents
    assert incident.batch is not None
    # The ids of the batch are beyond any vocabulary, and were not taken for its tokens.
    assert incident.batch.rows[0].token_ids == (BAD_TOKEN,) * LENGTH
    assert incident.batch.rows[0].row_id is None
