import numpy as np
import pytest
from tests.readers.shapes import Write, values

from trimtab.core.block import NO_POSITION
from trimtab.core.errors import NoUsableLoss
from trimtab.core.signals import Quality
from trimtab.readers import csv_log, read_log, table


def test_axes_of_a_plain_log(write: Write) -> None:
    reading = read_log(write("step,loss\n10,3\n20,2\n30,1\n"))
    block = reading.block
    assert block.step.tolist() == [10, 20, 30]
    assert block.tick.tolist() == [0, 1, 2]
    assert block.attempt.tolist() == [0, 0, 0]
    assert block.data_position.tolist() == [NO_POSITION] * 3
    assert block.step.dtype == block.tick.dtype == block.attempt.dtype == np.int64
    assert block.data_position.dtype == np.int64
    assert reading.names == {"step": "step", "loss": "loss"}


def test_steps_that_are_no_whole_numbers(write: Write) -> None:
    largest = 2**62
    steps = ["1", "2.0", " 3 ", "1e1", "x", "nan", "inf", "", "-", str(2 * largest), str(largest)]
    text = "step,loss\n" + "".join(f"{step},1.5\n" for step in steps)
    reading = read_log(write(text))
    assert reading.block.step.tolist() == [1, 2, 3, 10, largest]
    assert "Rows without a usable step, left out: 6." in reading.notes
    assert "Steps in 'step' over 2**53, known only roughly: 1." in reading.notes


def test_fractions_of_steps_are_reported(write: Write) -> None:
    reading = read_log(write("step,loss\n0.5,1\n1.0,2\n1.5,3\n"))
    assert reading.block.step.tolist() == [0, 1, 1]
    assert reading.notes == ("Steps in 'step' with a fraction, which was cut off: 2.",)


def test_an_attempt_begins_whenever_the_step_goes_back(write: Write) -> None:
    steps = [1, 2, 2, 3, 2, 3, 4, 4, 0, 5]
    reading = read_log(write("step,loss\n" + "".join(f"{step},1\n" for step in steps)))
    assert reading.block.attempt.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert reading.notes == ("Times that the step goes back, as after a restart: 2.",)


def test_steps_far_apart_do_not_overflow(write: Write) -> None:
    reading = read_log(write(f"step,loss\n{-(2**62)},1\n{2**62},2\n{-(2**62)},3\n"))
    assert reading.block.attempt.tolist() == [0, 0, 1]


@pytest.mark.parametrize("header", ["epoch,loss,lr", "step,loss,lr"])
def test_without_a_step_the_rows_are_numbered(write: Write, header: str) -> None:
    reading = read_log(write(f"{header}\n,2.5,1\n,,\n,2.4,1\n"))
    assert reading.block.step.tolist() == [0, 2]
    assert "There is no step column: the rows are numbered from 0 instead." in reading.notes
    assert "step" not in reading.names


def test_a_step_column_without_a_number_gives_way(write: Write) -> None:
    reading = read_log(write("step,_step,loss\n,5,2.5\n,6,2.4\n"))
    assert reading.block.step.tolist() == [5, 6]
    assert reading.names["step"] == "_step"


def test_rows_without_a_signal_are_left_out(write: Write) -> None:
    reading = read_log(write("step,loss,data_position\n1,2.5,0\n2,,1\n3,2.4,2\n"))
    assert reading.block.step.tolist() == [1, 3]
    assert reading.block.tick.tolist() == [0, 1]
    assert reading.notes == ("Rows with a step and nothing else, left out: 1.",)


def test_data_positions(write: Write) -> None:
    reading = read_log(write("step,loss,data_position\n1,1,7\n2,1,\n3,1,nan\n4,1,-3\n5,1,9.0\n"))
    assert reading.block.data_position.tolist() == [7, NO_POSITION, NO_POSITION, NO_POSITION, 9]
    assert "data_position" not in reading.block.columns


def test_names_scales_and_qualities(write: Write) -> None:
    text = "Step,loss_ema,Grad Norm,step_time_ms,my metric\n1,2.5,0.5,250,7\n"
    reading = read_log(write(text))
    assert values(reading.block, "step_seconds") == [0.25]
    assert values(reading.block, "my metric") == [7]
    assert reading.block.qualities == {"loss": Quality.SMOOTHED}
    assert reading.names == {
        "step": "Step",
        "loss": "loss_ema",
        "grad_norm": "Grad Norm",
        "step_seconds": "step_time_ms",
        "my metric": "my metric",
    }


def test_a_time_without_a_unit_keeps_its_name(write: Write) -> None:
    reading = read_log(write("step,loss,step_time\n1,2.5,250\n"))
    assert reading.block.columns.keys() == {"loss", "step_time"}


def test_the_loser_stays_under_its_own_name(write: Write) -> None:
    reading = read_log(write("step,train/loss,loss\n1,1.5,2.5\n"))
    assert values(reading.block, "loss") == [2.5]
    assert values(reading.block, "train/loss") == [1.5]
    assert len(reading.notes) == 1


def test_complete_columns_are_marked_as_such(write: Write) -> None:
    block = read_log(write("step,loss,lr\n1,2,3\n2,,3\n3,1,3\n")).block
    assert block.column("lr").present.strides == (0,)
    assert block.column("loss").present.strides == (1,)
    assert np.isnan(block.column("loss").values[1])


def test_a_column_whose_rows_were_all_dropped_is_left_out(write: Write) -> None:
    reading = read_log(write("step,loss,lr\n1,2.5,\nx,2.4,7\n"))
    assert list(reading.block.columns) == ["loss"]
    assert reading.names == {"step": "step", "loss": "loss"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,accuracy\n1,0.5\n", r"no column is known .* \(columns: 'step', 'accuracy'\); if"),
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


def test_a_loss_that_is_never_finite_is_a_loss(write: Write) -> None:
    assert read_log(write("step,loss\n1,nan\n2,inf\n")).block.column("loss").nonfinite.all()


def test_many_nearly_empty_columns_do_not_fill_the_memory(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "FREE_CELLS", 1000)
    rows = [f'{{"step": {row}, "loss": 1, "lr": 2, "once{row}": 1}}' for row in range(100)]
    reading = read_log(write("\n".join(rows)))
    assert len(reading.block) == 100
    assert len(reading.block.columns) == 16
    assert {"loss", "lr"} <= reading.block.columns.keys()
    assert reading.notes == ("Columns left out because nearly all of their cells are missing: 86.",)


def test_columns_beyond_the_limit_are_left_out(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MAX_COLUMNS", 3)
    monkeypatch.setattr(csv_log, "MAX_COLUMNS", 3)
    reading = read_log(write("step,loss,a,b,c\n1,2,3,4,5\n"))
    assert reading.block.columns.keys() == {"loss", "a"}
    assert reading.notes == ("There are more than 3 columns; the others are left out.",)


def test_a_single_loss_among_many_empty_rows_is_kept(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "FREE_CELLS", 10)
    reading = read_log(write("text,loss\n" + "x,\n" * 100 + "x,2.5\n"))
    assert values(reading.block, "loss") == [2.5]
