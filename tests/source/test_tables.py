"""Tables in memory: which column is which, what an index says, and when NaN means missing."""

import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab
from trimtab.core.errors import ConfigError
from trimtab.core.run import Run
from trimtab.source import read_run

pd: Any = pytest.importorskip("pandas")

STEPS = np.arange(300)
LOSSES = 2.0 + np.exp(-STEPS / 50)
NAN = math.nan


def num_nan(run: Run) -> int:
    return int(run.block.column("loss").nonfinite.sum())


# The step


@pytest.mark.parametrize(
    ("index", "steps"),
    [
        (pd.Index(STEPS * 5, name="iteration"), STEPS * 5),
        (pd.Index(STEPS * 5), STEPS * 5),
        (pd.Index(STEPS * 5, name="epoch"), STEPS * 5),
        (pd.Index(np.r_[:200, 100:200], name="step"), np.r_[:200, 100:200]),  # a restart
        (pd.Index(np.r_[:200, :100]), STEPS),  # frames put together, not a count
        (pd.Index(STEPS * 0 + 7, name="run"), STEPS),
        (pd.date_range("2026-01-01", periods=300), STEPS),
        (pd.MultiIndex.from_arrays([STEPS // 50, STEPS * 2], names=["epoch", "step"]), STEPS * 2),
    ],
)
def test_an_index_may_be_the_step(index: Any, steps: Any) -> None:
    frame = pd.DataFrame({"loss": LOSSES}, index=index)
    assert read_run(frame).block.step.tolist() == steps.tolist()
    assert read_run(frame["loss"]).block.step.tolist() == steps.tolist()


def test_a_step_column_comes_before_the_index() -> None:
    frame = pd.DataFrame({"global_step": STEPS * 3, "loss": LOSSES}, index=STEPS * 5)
    assert read_run(frame).block.step.tolist() == (STEPS * 3).tolist()


def test_columns_are_named() -> None:
    frame = pd.DataFrame({"it": STEPS * 2, "foo": LOSSES, "loss": 1.0})
    report = trimtab.diagnose(frame, loss="foo", step="it")
    assert report.block.step[-1] == 598
    assert report.block.column("loss").values[0] == 3.0
    with pytest.raises(trimtab.TrimtabError, match=r"no numbers under 'bar'.*give loss= one of"):
        trimtab.diagnose(frame, loss="bar")
    with pytest.raises(ConfigError, match="leave it out"):
        trimtab.diagnose(frame, format="csv")


def test_a_series_is_the_loss_whatever_it_is_called() -> None:
    series = pd.Series(LOSSES, name="nll per token")
    run = read_run(series)
    assert run.names["loss"] == "nll per token"
    assert read_run(pd.Series(LOSSES, name="loss_ema")).block.quality("loss").label == "smoothed"


# Names


def test_names_of_columns() -> None:
    columns = pd.MultiIndex.from_tuples([("train", "loss"), ("val", "acc"), ("step", "")])
    frame = pd.DataFrame(np.c_[LOSSES, LOSSES, STEPS * 2], columns=columns)
    run = read_run(frame)
    assert run.names == {"loss": "train/loss", "val/acc": "val/acc", "step": "step"}
    twice = pd.DataFrame(np.c_[LOSSES, LOSSES + 1], columns=["loss", "loss"])
    assert read_run(twice).names == {"loss": "loss", "loss (2)": "loss (2)"}
    with pytest.raises(trimtab.TrimtabError, match=r"columns: '0', '1'.*name it with loss="):
        read_run(pd.DataFrame({0: STEPS, 1: LOSSES}))


def test_nested_dicts_are_flattened() -> None:
    columns = {"train": {"loss": LOSSES.tolist(), "lr": [1e-3] * 300}, "run": "a name"}
    assert read_run(columns).block.step.tolist() == STEPS.tolist()
    rows = [{"step": 2 * n, "train": {"loss": loss}} for n, loss in enumerate(LOSSES)]
    assert read_run(rows).names["loss"] == "train/loss"


def test_a_dict_of_rows_by_step() -> None:
    run = read_run({10 * n: {"loss": loss, "lr": 1e-3} for n, loss in enumerate(LOSSES)})
    assert run.block.step.tolist() == (STEPS * 10).tolist()
    frame = pd.DataFrame({"step": STEPS * 3, "loss": LOSSES})
    assert read_run(frame.to_dict("index")).block.step.tolist() == (STEPS * 3).tolist()


def test_pairs_of_a_step_and_a_value() -> None:
    pairs = {
        "train_loss": [[10 * n, loss] for n, loss in enumerate(LOSSES.tolist())],
        "eval_loss": [(1000, 2.0), (2000, None), (2500, "NaN")],
    }
    run = read_run(pairs)
    assert run.block.step.tolist() == (STEPS * 10).tolist()
    evaluations = run.block.column("eval_loss")
    assert np.flatnonzero(evaluations.present).tolist() == [100, 250]
    by_step = {"loss": {str(step): loss for step, loss in enumerate(LOSSES)}}  # as JSON has it
    assert read_run(by_step).block.step.tolist() == STEPS.tolist()


def test_columns_of_evaluations_may_be_shorter() -> None:
    run = read_run({"loss": LOSSES.tolist(), "val_loss": [2.0, 1.9]})
    assert "Columns of a different length than the loss, left out: 'val_loss'." in run.notes


# NaN or missing, where a column can say only one


def test_a_run_that_died_is_dead_in_a_frame() -> None:
    dead = np.where(STEPS < 200, LOSSES, NAN)
    norm = np.where(STEPS < 200, 1.0, NAN)
    for columns in ({}, {"grad_norm": norm}, {"grad_norm": norm, "lr": 1e-3}):
        frame = pd.DataFrame({"step": STEPS, "loss": dead, **columns})
        verdict = trimtab.diagnose(frame).verdict
        before = "a checkpoint from before step 200"
        assert verdict == f"Dead since step 200: stop and roll back to {before}."


def test_rows_of_another_kind_have_no_loss() -> None:
    rows: list[dict[str, float]] = []
    for step in STEPS.tolist():
        rows.append({"step": step, "train_loss": LOSSES[step], "epoch": step // 50, "lr": 1e-3})
        if step % 50 == 49:
            rows.append({"step": step, "val_loss": 2.0, "epoch": step // 50})
    rows[120]["train_loss"] = NAN
    run = read_run(pd.DataFrame(rows))
    assert num_nan(run) == 1
    assert run.block.column("eval_loss").present.sum() == 6
    assert not run.block.column("lr").nonfinite.any()
    assert "6 NaNs in 'train_loss' only to fill up a row are read as missing." in run.notes


@pytest.mark.parametrize("is_logged", [STEPS % 2 == 0, STEPS % 3 != 0, STEPS % 10 == 9])
def test_a_norm_that_is_logged_every_few_rows(is_logged: Any) -> None:
    norm = np.where(is_logged, 1.0, NAN)
    run = read_run(pd.DataFrame({"loss": LOSSES, "grad_norm": norm}))
    assert run.block.column("grad_norm").present.tolist() == is_logged.tolist()


def test_a_norm_that_is_nan_before_the_loss_is() -> None:
    norm = np.where((STEPS < 150) & (STEPS != 100), 1.0, NAN)
    run = read_run(pd.DataFrame({"loss": np.where(STEPS < 200, LOSSES, NAN), "grad_norm": norm}))
    assert run.block.column("grad_norm").nonfinite.sum() == 151


def test_rows_of_a_frame_are_read_as_the_frame_is() -> None:
    history = [{"step": step, "loss": LOSSES[step]} for step in STEPS.tolist()]
    history[50:50] = [{"step": 49, "val_loss": 2.0}]
    frame = pd.DataFrame([*history, {"step": 299, "val_loss": 1.9}])
    for given in (frame, frame.to_dict("records"), frame.to_dict("list")):
        assert num_nan(read_run(given)) == 0


DEAD = pd.Series(np.where(STEPS < 200, LOSSES, NAN))
EVERY_TENTH = np.where(np.arange(3000) % 10 == 0, 2.5, NAN)
DEAD_LATER = np.where(np.arange(3000) < 2000, EVERY_TENTH, NAN)


@pytest.mark.parametrize(
    ("columns", "count"),
    [
        ({"loss": EVERY_TENTH, "lr": 1e-3}, 0),
        ({"loss": DEAD_LATER, "lr": 1e-3}, 1000),
        ({"loss": np.where(STEPS % 2 == 0, LOSSES, NAN), "lr": 1e-3}, 150),
        (
            {
                "loss": np.where(STEPS == 99, NAN, LOSSES),
                "val_loss": np.where(STEPS % 10 == 9, 2.0, NAN),
            },
            1,
        ),
        (
            {
                "step": STEPS,
                "loss": np.where(STEPS < 10, LOSSES, NAN),
                "skipped": np.where(STEPS < 10, NAN, STEPS),
            },
            290,
        ),
        ({"step": STEPS, "loss": DEAD.astype("category")}, 100),
        ({"step": STEPS, "loss": DEAD.astype("Sparse[float]")}, 100),
    ],
    ids=[
        *("a loss every tenth row", "and none at the end", "every other step"),
        *("beside an evaluation", "a counter that begins when a run dies"),
        *("what cannot say missing", "and sparse"),
    ],
)
def test_how_many_losses_are_nan(columns: dict[str, Any], count: int) -> None:
    assert num_nan(read_run(pd.DataFrame(columns))) == count


def test_evaluations_in_rows_of_training() -> None:
    evaluations = np.full(300, NAN)
    evaluations[49::50] = 2.0
    run = read_run(pd.DataFrame({"loss": LOSSES, "eval_loss": evaluations}))
    assert run.block.column("eval_loss").present.sum() == 6


def test_a_column_that_knows_missing_is_taken_at_its_word() -> None:
    loss = pd.array([*LOSSES[:-1], None], dtype="Float64")
    run = read_run(pd.DataFrame({"loss": loss, "lr": 1e-3}))
    assert not run.block.column("loss").present[-1]


# HF's Trainer


def history() -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    for n, loss in enumerate(LOSSES.tolist(), start=1):
        rows.append(
            {
                "loss": loss,
                "grad_norm": 1.0,
                "learning_rate": 1e-4,
                "epoch": n / 100,
                "step": n * 10,
            }
        )
        if n % 100 == 0:
            rows.append({"eval_loss": 2.0, "eval_runtime": 1.0, "epoch": n / 100, "step": n * 10})
    rows[250] |= {"loss": 0.0, "grad_norm": NAN}  # how a loss of NaN is logged
    rows.append({"train_runtime": 9.0, "train_loss": 2.2, "epoch": 3.0, "step": 3000})
    return rows


class Trainer:
    """As HF's: the state is an attribute of the object, not of its class."""

    def __init__(self, rows: list[dict[str, float]]) -> None:
        self.state = State(rows)


class State:
    def __init__(self, rows: list[dict[str, float]]) -> None:
        self.log_history = rows


def test_the_history_of_hf_is_read_as_its_file(tmp_path: Path) -> None:
    rows = history()
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"global_step": 3000, "log_history": rows}))
    expected = trimtab.diagnose(path).to_dict()
    document = json.loads(path.read_text())
    for given in (rows, Trainer(rows), State(rows), document):
        report = trimtab.diagnose(given).to_dict()
        assert {**report, "source": ""} == {**expected, "source": ""}
    report = trimtab.diagnose(pd.DataFrame(rows)).to_dict()
    filled, *notes = report["notes"]
    assert filled == "4 NaNs in 'loss' only to fill up a row are read as missing."
    assert {**report, "source": "", "notes": notes} == {**expected, "source": ""}


# Columns without numbers, and large ones


def test_columns_that_hold_no_numbers() -> None:
    frame = pd.DataFrame(
        {
            "loss": LOSSES,
            "at": pd.date_range("2026-01-01", periods=300),
            "zone": pd.date_range("2026-01-01", periods=300, tz="UTC"),
            "took": pd.to_timedelta(STEPS, unit="s"),
            "ok": STEPS % 2 == 0,
            "kind": pd.Categorical(["a", "b", "c"] * 100),
            "thing": [object()] * 300,
            "phase": "train",
        }
    )
    run = read_run(frame)
    assert list(run.block.columns) == ["loss"]
    names = "'at', 'zone', 'took', 'ok', 'kind', 'thing', 'phase'"
    assert f"Columns without a number, left out: {names}." in run.notes
    with pytest.raises(trimtab.TrimtabError, match=r"the first cell is 'True'"):
        read_run(pd.DataFrame({"loss": STEPS % 2 == 0}))


def test_a_million_rows_take_no_loop_in_python() -> None:
    rows = 1_000_000
    frame = pd.DataFrame({"step": np.arange(rows), "loss": 2.0, "lr": 1e-3, "grad_norm": 1.0})
    frame["tokens"] = pd.array(np.arange(rows), dtype="Int64")
    start = time.process_time()
    assert len(read_run(frame).block) == rows
    assert time.process_time() - start < 3.0  # a loop over the cells takes ten times as long


def test_parts_of_one_run() -> None:
    frame = pd.DataFrame({"step": STEPS, "loss": LOSSES})
    later = frame.assign(step=STEPS + 300, loss=LOSSES[-1])
    report = trimtab.diagnose([frame, later])
    assert report.source == "DataFrame, DataFrame"
    assert report.block.step.tolist() == list(range(600))


def test_polars_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    polars = pytest.importorskip("polars")
    columns = {"step": STEPS, "loss": [None, NAN, *LOSSES[2:]], "lr": 1e-3}
    frame = polars.DataFrame(columns, strict=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run = read_run(frame)
    assert run.block.column("loss").present.tolist() == [False, *[True] * 299]
    assert num_nan(run) == 1


def test_the_examples_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "readers.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"```python\n(.*?)```", page.split("## From Python\n")[1].split("\n## ")[0], re.S
    )
    monkeypatch.chdir(tmp_path)
    Path("train.log").write_text("".join(f"step {n} loss {9 - n / 50}\n" for n in range(1, 90)))
    with open("train.log", encoding="utf-8") as file:  # noqa: PTH123 - as a user would
        frame = pd.DataFrame({"it": STEPS, "loss": LOSSES, "nll": LOSSES})
        known = {"frame": frame, "losses": LOSSES, "trainer": Trainer(history())}
        exec(code, {"trimtab": trimtab, "open": lambda name: file, **known})
