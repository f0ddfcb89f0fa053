"""From named columns to a block: axes, names, what is left out and what is refused."""

from typing import Any

import numpy as np
import pytest
from tests.readers.shapes import Write, assert_reads, values

from trimtab.core.block import NO_POSITION
from trimtab.core.errors import NoUsableLoss
from trimtab.core.signals import Quality
from trimtab.readers import csv_log, read_log, table

LARGEST = 2**62
STEPS = ["1", "2.0", " 3 ", "1e1", "x", "nan", "inf", "", "-", str(2 * LARGEST), str(LARGEST)]
ODD_STEPS = "step,loss\n" + "".join(f"{step},1.5\n" for step in STEPS)
NUMBERED = "There is no step column: the rows are numbered from 0 instead."
EMPTY_ROWS = "1 row with a step and nothing else is left out."
CHOSEN = "loss is taken from 'loss'; kept under its own name: 'train/loss'."

TEXTS: dict[str, tuple[Any, ...]] = {
    "steps that are no whole numbers": (ODD_STEPS, f"step=1 2 3 10 {LARGEST}", ...),
    "fractions of steps": (
        "step,loss\n0.5,1\n1.0,2\n1.5,3\n",
        "step=0 1 1",
        "2 steps in 'step' have a fraction, which is cut off.",
    ),
    "an attempt begins whenever the step goes back": (
        "step,loss\n1,1\n2,1\n2,1\n3,1\n2,1\n3,1\n4,1\n4,1\n0,1\n5,1\n",
        "attempt=0 0 0 0 1 1 1 1 2 2",
        "The step goes back twice, as after a restart.",
    ),
    "steps far apart": (
        f"step,loss\n{-LARGEST},1\n{LARGEST},2\n{-LARGEST},3\n",
        "attempt=0 0 1",
        ...,
    ),
    "without a step": ("epoch,loss,lr\n,2.5,1\n,,\n,2.4,1\n", "step=0 2", NUMBERED, ...),
    "with an empty one": ("step,loss,lr\n,2.5,1\n,,\n,2.4,1\n", "step=0 2", NUMBERED, ...),
    "an empty step gives way": ("step,_step,loss\n,5,2.5\n,6,2.4\n", "step=5 6", ...),
    "rows without a signal": (
        "step,loss,data_position\n1,2.5,0\n2,,1\n3,2.4,2\n",
        "step=1 3",
        EMPTY_ROWS,
    ),
    "a time without a unit keeps its name": ("step,loss,step_time\n1,2.5,250\n", "step_time=250"),
    "two losses": ("step,train/loss,loss\n1,1.5,2.5\n", "loss=2.5; train/loss=1.5", CHOSEN),
    "a loss that is never finite": ("step,loss\n1,nan\n2,inf\n", "loss=nan inf"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_read(write: Write, name: str) -> None:
    text, *wanted = TEXTS[name]
    assert_reads(read_log(write(text)), *wanted)


def test_axes_of_a_plain_log(write: Write) -> None:
    reading = read_log(write("step,loss\n10,3\n20,2\n30,1\n"))
    block = reading.block
    assert_reads(reading, "step=10 20 30; attempt=0 0 0")
    assert block.tick.tolist() == [0, 1, 2]
    assert block.data_position.tolist() == [NO_POSITION] * 3
    assert {axis.dtype for axis in (block.step, block.tick, block.attempt)} == {np.dtype("int64")}
    assert block.data_position.dtype == np.int64
    assert reading.names == {"step": "step", "loss": "loss"}


def test_notes_on_odd_steps(write: Write) -> None:
    notes = read_log(write(ODD_STEPS)).notes
    assert "6 rows without a usable step are left out." in notes
    assert "1 step in 'step' is over 2**53: known only roughly." in notes


def test_rows_that_are_numbered_are_told_with_their_epoch(write: Write) -> None:
    reading = read_log(write("epoch,loss\n" + "".join(f"{n / 40},2\n" for n in range(60))))
    note = 'No step column: "step" below is the row number (row 50 = epoch 1.25).'
    assert note in reading.notes


def test_data_positions(write: Write) -> None:
    reading = read_log(write("step,loss,data_position\n1,1,7\n2,1,\n3,1,nan\n4,1,-3\n5,1,9.0\n"))
    assert reading.block.data_position.tolist() == [7, NO_POSITION, NO_POSITION, NO_POSITION, 9]
    assert "data_position" not in reading.block.columns


def test_names_scales_and_qualities(write: Write) -> None:
    text = "Step,loss_ema,Grad Norm,step_time_ms,my metric,lr\n1,2.5,0.5,250,7,\nx,2.4,1,1,1,9\n"
    reading = read_log(write(text))
    assert_reads(reading, "loss=2.5; grad_norm=0.5; step_seconds=0.25; my metric=7", ...)
    assert reading.block.qualities == {"loss": Quality.SMOOTHED}
    assert reading.names == {
        "step": "Step",
        "loss": "loss_ema",
        "grad_norm": "Grad Norm",
        "step_seconds": "step_time_ms",
        "my metric": "my metric",
    }  # the only learning rate was in a row without a step


def test_complete_columns_are_marked_as_such(write: Write) -> None:
    block = read_log(write("step,loss,lr\n1,2,3\n2,,3\n3,1,3\n")).block
    assert block.column("lr").present.strides == (0,)
    assert block.column("loss").present.strides == (1,)
    assert np.isnan(block.column("loss").values[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,accuracy\n1,0.5\n", r"no column is known .* \(columns: 'step', 'accuracy'\); if"),
        ('{"step": 1, "accuracy": 0.5}\n', "'step', 'accuracy'"),
        ("step,loss,lr\n1,,1\n2,null,1\n", "'loss' is a loss column, but no number"),
        ("step,loss,a loss\n1,,3\n", "'loss' is a loss column, but no number"),
        ("step,a loss,b loss\n1,2,3\n", "if one of them is, name it with --loss"),
        ("step,loss\nnan,2.5\n", "no row with a usable step has a value in 'loss'"),
        ("step,loss,lr\n1,,1\n,2.5,1\n", "make sure that it holds numbers"),
        ('step,loss\n1,"2,5"\n', r"'loss' is a loss column.*\(the first cell is '2,5'\); write"),
    ],
)
def test_without_a_loss(write: Write, text: str, message: str) -> None:
    with pytest.raises(NoUsableLoss, match=message):
        read_log(write(text))


def test_many_nearly_empty_columns_do_not_fill_the_memory(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "FREE_CELLS", 1000)
    rows = [f'{{"step": {row}, "loss": 1, "lr": 2, "once{row}": 1}}' for row in range(100)]
    reading = read_log(write("\n".join(rows)))
    assert len(reading.block) == 100
    assert len(reading.block.columns) == 16
    assert {"loss", "lr"} <= reading.block.columns.keys()
    assert reading.notes == ("86 columns are left out: nearly all of the cells are missing.",)
    monkeypatch.setattr(table, "FREE_CELLS", 10)
    single = read_log(write("text,loss\n" + "x,\n" * 100 + "x,2.5\n"))
    assert values(single.block, "loss") == [2.5]


def test_columns_beyond_the_limit_are_left_out(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MAX_COLUMNS", 3)
    monkeypatch.setattr(csv_log, "MAX_COLUMNS", 3)
    reading = read_log(write("step,loss,a,b,c\n1,2,3,4,5\n"))
    assert reading.block.columns.keys() == {"loss", "a"}
    assert reading.notes == ("There are more than 3 columns; the others are left out.",)


def two_runs(first: float, between: int = 30, start: int = 0) -> str:
    falls = [f"{step},{9 * 0.9**step + 1}\n" for step in range(between)]
    again = [f"{start + step},{first * 0.9**step + 1}\n" for step in range(between)]
    return "step,loss\n" + "".join(falls + again)


def test_a_second_run_in_the_same_file_is_told_from_a_restart(write: Write) -> None:
    (note,) = read_log(write(two_runs(9))).notes
    assert note.startswith("A second run begins after 30 records: the step goes back from 29 to 0")
    restart = ("The step goes back once, as after a restart.",)
    assert read_log(write(two_runs(0.5))).notes == restart  # the loss goes on where it was
    assert read_log(write(two_runs(9, start=10))).notes == restart  # the step is not the first one


def test_a_step_that_counts_nothing_is_refused(write: Write) -> None:
    path = write("step,lr,loss\n" + "".join(f"{n},{1e-3 * n},{9.5 - n / 4}\n" for n in range(20)))
    with pytest.raises(NoUsableLoss, match=r"'lr' is no step: .*; did you mean 'step'\?"):
        read_log(path, step="lr")
    with pytest.raises(NoUsableLoss, match="'loss' is no step"):
        read_log(path, step="loss")
    halves = write("epoch,loss\n" + "".join(f"{n / 4},2.5\n" for n in range(1, 20)))
    assert len(read_log(halves, step="epoch").block) == 19
