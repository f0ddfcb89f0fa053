"""Rows that would be lost, or taken for restarts, in silence."""

import random
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.errors import UnreadableLog
from trimtab.readers import read_log

LOSSES = [3.0 - 0.001 * step for step in range(400)]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("seed", [None, 1])
def test_rows_that_fall_or_are_shuffled_are_sorted(tmp_path: Path, seed: int | None) -> None:
    rows = [f"{step},{loss}" for step, loss in enumerate(LOSSES)]
    rows = rows[::-1] if seed is None else random.Random(seed).sample(rows, len(rows))
    run = read_log(written(tmp_path / "a.csv", ["step,loss", *rows]))
    assert run.block.step.tolist() == list(range(400))
    assert run.block.column("loss").values.tolist() == LOSSES
    assert not run.block.attempt.any()
    assert any("sorted" in note for note in run.notes)


def test_a_run_that_restarts_often_is_not_sorted(tmp_path: Path) -> None:
    steps = [step for start in range(0, 400, 5) for step in range(start, start + 8)]
    rows = [f"{step},{3.0 + 0.001 * place}" for place, step in enumerate(steps)]
    run = read_log(written(tmp_path / "a.csv", ["step,loss", *rows]))
    assert run.block.step.tolist() == steps


def test_steps_with_separators_are_refused_and_not_lost(tmp_path: Path) -> None:
    rows = [f'"{100 * place:,}",{loss}' for place, loss in enumerate(LOSSES)]
    with pytest.raises(UnreadableLog, match=r"the first is '1,000'\); write them without"):
        read_log(written(tmp_path / "a.csv", ["step,loss", *rows]))


def test_points_between_thousands_beside_decimal_commas(tmp_path: Path) -> None:
    rows = [
        f"{10 * n:,};{loss:.4f};0,001".replace(",", ".").replace(";0.", ";0,")
        for n, loss in enumerate(LOSSES)
    ]
    rows = [
        row.replace(f"{loss:.4f}", f"{loss:.4f}".replace(".", ","))
        for row, loss in zip(rows, LOSSES, strict=True)
    ]
    run = read_log(written(tmp_path / "a.csv", ["step;loss;lr", *rows]))
    assert run.block.step.tolist() == [10 * n for n in range(400)]
    assert np.allclose(run.block.column("loss").values, LOSSES)
    assert run.block.column("lr").values[0] == 0.001


def test_a_nan_printed_at_a_step_that_was_there_is_kept(tmp_path: Path) -> None:
    lines = [f"step {step} loss {loss}" for step, loss in enumerate(LOSSES)]
    lines[300:300] = ["step 299 loss nan"]
    run = read_log(written(tmp_path / "a.log", lines))
    assert run.block.column("loss").nonfinite.sum() == 1


def test_of_columns_called_after_runs_only_the_chosen_one_is_read(tmp_path: Path) -> None:
    rows = [f"{step},{loss},{'' if step > 200 else loss}" for step, loss in enumerate(LOSSES)]
    run = read_log(written(tmp_path / "a.csv", ["step,base,noise", *rows]), run="noise")
    assert list(run.block.columns) == ["loss"]
    assert len(run.block) == 201


def test_steps_that_go_on_without_a_loss_are_records(tmp_path: Path) -> None:
    rows = [f"{step},{loss if step < 300 else ''}" for step, loss in enumerate(LOSSES)]
    run = read_log(written(tmp_path / "a.csv", ["step,loss", *rows]))
    assert len(run.block) == 400
    assert run.block.column("loss").present.sum() == 300
