"""Several runs in one file, evaluations among records, and ranks that write to one file."""

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tests.readers.shapes import Write, assert_reads, values

from trimtab.core.errors import LogError, NoUsableLoss, UnreadableLog
from trimtab.readers import read_log
from trimtab.readers.runs import repeated_by_others


def table(header: str, *rows: Sequence[object]) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def block_of(run: str, first: int = 0, count: int = 6) -> list[tuple[object, ...]]:
    return [(run, step, ord(run[-1]) + step / 10) for step in range(first, first + count)]


@pytest.mark.parametrize("name", ["run", "run_id", "Model", "experiment", "seed", "optimizer"])
def test_blocks_of_rows_that_a_column_names_are_runs(write: Write, name: str) -> None:
    path = write(table(f"{name},step,loss", *block_of("1"), *block_of("2"), *block_of("3")))
    reading = read_log(path)
    assert values(reading.block, "loss") == [51 + step / 10 for step in range(6)]
    note = "Of 3 runs in the file, '3' is read; --run reads a different one: '2', '1'."
    assert note in reading.notes
    assert values(read_log(path, run="1").block, "loss")[0] == 49.0
    assert values(read_log(f"{path}#2").block, "loss")[0] == 50.0
    with pytest.raises(UnreadableLog, match="has no run '4'; its runs: '3', '2', '1'"):
        read_log(path, run="4")


def test_runs_in_json_lines_and_in_an_array(write: Write) -> None:
    rows = [
        {"run_name": run, "step": step, "loss": loss}
        for step in range(6)
        for run, _, loss in (block_of("a")[step], block_of("b")[step])
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for text in (lines, json.dumps(rows)):
        reading = read_log(write(text), run="a")
        assert values(reading.block, "loss") == [97 + step / 10 for step in range(6)]
        assert not any("goes back" in note for note in reading.notes)


def test_settings_together_name_a_run(write: Write) -> None:
    rows = [
        (model, seed, step, seed + step / 10)
        for model in ("a", "b")
        for seed in (1, 2)
        for step in range(5)
    ]
    reading = read_log(write(table("model,seed,step,loss", *rows)), run="a, 2")
    assert values(reading.block, "loss") == [2 + step / 10 for step in range(5)]


def test_a_run_that_goes_on_under_a_new_id_is_one_run(write: Write) -> None:
    text = table("run_id,step,loss", *block_of("1", 0), *block_of("2", 4), *block_of("3", 8))
    reading = read_log(write(text))
    assert len(reading.block) == 18
    assert reading.block.attempt.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert len(read_log(write(text), run="2").block) == 6


@pytest.mark.parametrize("name", ["run_id", "model"])
def test_one_name_or_a_name_for_every_row_is_one_run(write: Write, name: str) -> None:
    rows = [*block_of("a"), *block_of("a")]
    assert len(read_log(write(table(f"{name},step,loss", *rows))).block) == 12
    unique = [(f"id{n}", n, 2.5) for n in range(6)]
    assert len(read_log(write(table(f"{name},step,loss", *unique))).block) == 6


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("run_a_loss", "run_b_loss"),
        ("seed1/train_loss", "seed2/train_loss"),
        ("loss_seed_1", "loss_seed_2"),
        ("lr_0.1_loss", "lr_0.01_loss"),
        ("swift-owl-1 - train/loss", "calm-fox-2 - train/loss"),
    ],
)
def test_columns_with_the_names_of_runs(write: Write, first: str, second: str) -> None:
    path = write(table(f"step,{first},{second}", (1, 2.5, 3.5), (2, 2.25, 3.25)))
    reading = read_log(path)
    assert values(reading.block, "loss") == [2.5, 2.25]
    (note,) = [note for note in reading.notes if "runs in the file" in note]
    other = note.split("'")[-2]
    assert values(read_log(path, run=other).block, "loss") == [3.5, 3.25]


def test_all_columns_of_a_run_are_taken(write: Write) -> None:
    header = "step,run_a_loss,run_a_grad_norm,run_b_loss,run_b_grad_norm"
    reading = read_log(write(table(header, (1, 2.5, 0.5, 3.5, 0.7))), run="run_b")
    assert_reads(reading, "loss=3.5; grad_norm=0.7", ...)
    assert reading.block.columns.keys() == {"loss", "grad_norm"}


@pytest.mark.parametrize(
    "header",
    [
        "Epoch,Batch,Gen Loss,Disc Loss",
        "epoch,batch,box_loss,cls_loss",
        "epoch,batch,expert_0_loss,expert_1_loss",
        "epoch,batch,baseline,ours",
    ],
)
def test_parts_of_a_loss_are_not_runs(write: Write, header: str) -> None:
    with pytest.raises(NoUsableLoss, match="name it with --loss"):
        read_log(write(table(header, (0, 0, 0.7, 1.4), (0, 1, 0.8, 1.3))))


def test_the_mean_beside_the_losses_of_seeds_is_the_loss(write: Write) -> None:
    text = table("step,loss,loss_seed_1,loss_seed_2", (1, 2.0, 1.5, 2.5))
    assert values(read_log(write(text)).block, "loss") == [2.0]


def test_a_column_that_is_called_after_its_run(write: Write) -> None:
    path = write(table("hidden_size_50.0,hidden_size_100.0", (4.5, 4.25), (4.0, 3.75)))
    with pytest.raises(NoUsableLoss):
        read_log(path)
    assert values(read_log(path, run="hidden_size_100.0").block, "loss") == [4.25, 3.75]


def test_rows_of_an_evaluation_are_told_apart_in_every_format(write: Write) -> None:
    rows = [("train", 1, 2.5), ("val", 1, 3.5), ("train", 2, 2.25), ("val", 2, 3.25)]
    lines = "".join(
        json.dumps({"phase": phase, "step": step, "loss": loss}) + "\n"
        for phase, step, loss in rows
    )
    for text in (table("phase,step,loss", *rows), lines):
        assert_reads(read_log(write(text)), "loss=2.5 - 2.25 -; eval_loss=- 3.5 - 3.25", ...)


# Documents


@pytest.mark.parametrize(
    "document",
    [
        {"loss": [2.5, 2.25], "step": [10, 20]},
        {"config": {"lr": 0.1}, "history": {"loss": [2.5, 2.25], "step": [10, 20]}},
        {"train_loss": [[10, 2.5], [20, 2.25]], "val_loss": [[20, 3.0]]},
        {"train": {"loss": [[10, 2.5], [20, 2.25]]}, "val": {"loss": [[20, 3.0]]}},
        {"loss": [[1.7e9, 10, 2.5], [1.7e9, 20, 2.25]]},
        {"loss": {"10": 2.5, "20": 2.25}},
        {"results": {"log": [{"step": 10, "loss": 2.5}, {"step": 20, "loss": 2.25}]}},
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_columns_in_a_document(write: Write, document: Any, indent: int | None) -> None:
    reading = read_log(write(json.dumps(document, indent=indent), "x.json"))
    assert reading.format == "json"
    evaluated = "; eval_loss=- 3" if "val" in str(document) else ""
    assert_reads(reading, f"step=10 20; loss=2.5 2.25{evaluated}", ...)


def test_pairs_after_a_restart_and_what_is_not_finite(write: Write) -> None:
    text = '{"loss": [[1, 2.5], [2, NaN], [1, 2.5], [2, "inf"], [3, null]]}'
    reading = read_log(write(text, "x.json"))
    assert_reads(reading, "step=1 2 1 2; attempt=0 0 1 1; loss=2.5 nan 2.5 inf", ...)


def test_lists_of_other_lengths_have_other_steps(write: Write) -> None:
    document = {"val_loss": [3.0], "loss": [2.5, 2.25], "lr": [0.1, 0.2], "tags": ["a", "b"]}
    reading = read_log(write(json.dumps(document), "x.json"))
    assert reading.block.columns.keys() == {"loss", "lr"}
    assert "1 list of a different length than the loss is left out." in reading.notes


RUNS = {"a": {"loss": [2.5, 2.25], "name": "a"}, "b": {"loss": [3.5, 3.25], "name": "b"}}


@pytest.mark.parametrize(
    "document",
    [
        RUNS,
        {"runs": RUNS},
        list(RUNS.values()),
        {"runs": list(RUNS.values())},
        {name: [{"loss": loss} for loss in run["loss"]] for name, run in RUNS.items()},
    ],
)
def test_runs_in_a_document(write: Write, document: Any) -> None:
    path = write(json.dumps(document), "x.json")
    reading = read_log(path)
    assert values(reading.block, "loss") == [2.5, 2.25]
    assert any("Of 2 runs in the file, 'a' is read" in note for note in reading.notes)
    assert values(read_log(path, run="b").block, "loss") == [3.5, 3.25]
    with pytest.raises(UnreadableLog, match="has no run 'c'; its runs: 'a', 'b'"):
        read_log(path, run="c")


def test_series_that_are_called_after_their_runs(write: Write) -> None:
    path = write('{"none": [], "base": [[7, 2.5], [8, 2.25]], "noise": [[1, 3.5]]}', "x.json")
    with pytest.raises(NoUsableLoss, match="columns: 'step', 'base', 'noise'"):
        read_log(path)
    reading = read_log(path, run="base")
    column = reading.block.column("loss")
    assert reading.block.step[column.present].tolist() == [7, 8]


@pytest.mark.parametrize(
    "text",
    [
        '{"loss": [1, 2',
        '{\n "loss": [\n  1,\n',
        '{"a": 1}',
        '{"a": [[[]]]}',
        '{"loss": ' + "[" * 9999,
        '{"loss": {"1": 2, "x": 3}}',
        "[" + '{"loss": [1, 2]},' * 3,
    ],
)
def test_documents_that_hold_no_run_or_half_of_one(write: Write, text: str) -> None:
    with suppress(LogError):
        assert len(read_log(write(text, "x.json")).block)


def test_the_losses_of_one_step_are_not_a_run(write: Write) -> None:
    text = json.dumps([{"step": step, "loss": [2.5, 2.25]} for step in range(3)])
    with pytest.raises(NoUsableLoss, match="the first cell is 'list'"):
        read_log(write(text))


# Ranks


def test_ranks_that_a_column_names_are_one_record(write: Write) -> None:
    rows = [(step, rank, step + rank / 10) for step in range(5) for rank in (0, 1, 2)]
    reading = read_log(write(table("step,rank,loss", *rows)))
    assert values(reading.block, "loss") == [float(step) for step in range(5)]
    assert "10 records of further ranks are left out." in reading.notes


def take_turns(count: int, lag: int = 1) -> list[int]:
    """Two writers, the second some records behind."""
    return [*range(lag), *(step for n in range(count) for step in (n + lag, n))]


def test_writers_that_take_turns_are_one_record_a_step(write: Write) -> None:
    rows = [(step, step / 10) for step in (*take_turns(40), *range(20, 60))]
    reading = read_log(write(table("step,loss", *rows)))
    assert reading.block.step.tolist() == [*range(41), *range(20, 60)]
    assert reading.block.attempt.tolist() == [0] * 41 + [1] * 40
    assert any("Several writers log every step" in note for note in reading.notes)


@pytest.mark.parametrize(
    "steps",
    [
        list(range(100)),
        [step for step in range(50) for _ in range(4)],  # micro-batches
        [*range(50), *range(40, 90), *range(80, 130)],
        [*range(100), *(step for _ in range(30) for step in (100, 101, 102))],  # dies again
        [step for start in range(0, 300, 10) for step in range(start, start + 19)],
        [1, 1, 2, 2, 1, 3, 1, 1, 2, 1, *range(2, 100)],
        [],
        [1],
    ],
)
def test_restarts_are_not_writers_that_take_turns(steps: list[int]) -> None:
    assert not len(repeated_by_others(np.array(steps, dtype=np.int64)))


def test_what_the_second_writer_repeats() -> None:
    for lag in (1, 2):
        assert len(repeated_by_others(np.array(take_turns(40, lag)))) == 40


# Rows that would be lost, or taken for restarts, in silence

DECAY = [3.0 - 0.001 * step for step in range(400)]


@pytest.mark.parametrize("seed", [None, 1])
def test_rows_that_fall_or_are_shuffled_are_sorted(write: Write, seed: int | None) -> None:
    rows = list(enumerate(DECAY))
    rows = rows[::-1] if seed is None else random.Random(seed).sample(rows, len(rows))
    run = read_log(write(table("step,loss", *rows)))
    assert run.block.step.tolist() == list(range(400))
    assert values(run.block, "loss") == DECAY
    assert not run.block.attempt.any()
    assert any("sorted" in note for note in run.notes)


def test_a_run_that_restarts_often_is_not_sorted(write: Write) -> None:
    steps = [step for start in range(0, 400, 5) for step in range(start, start + 8)]
    rows = [(step, 3.0 + 0.001 * place) for place, step in enumerate(steps)]
    assert read_log(write(table("step,loss", *rows))).block.step.tolist() == steps


def test_steps_with_separators_are_refused_and_not_lost(write: Write) -> None:
    rows = [(f'"{100 * place:,}"', loss) for place, loss in enumerate(DECAY)]
    with pytest.raises(UnreadableLog, match=r"the first is '1,000'\); write them without"):
        read_log(write(table("step,loss", *rows)))


def test_points_between_thousands_beside_decimal_commas(write: Write) -> None:
    lines = [
        ";".join((f"{10 * n:,}".replace(",", "."), f"{loss:.3f}".replace(".", ","), "0,001"))
        for n, loss in enumerate(DECAY)
    ]
    block = read_log(write("\n".join(["step;loss;lr", *lines]))).block
    assert block.step.tolist() == list(range(0, 4000, 10))
    assert np.allclose(block.column("loss").values, DECAY)
    assert block.column("lr").values[0] == 0.001


def test_a_nan_printed_at_a_step_that_was_there_is_kept(write: Write) -> None:
    lines = [f"step {step} loss {loss}\n" for step, loss in enumerate(DECAY)]
    lines[300:300] = ["step 299 loss nan\n"]
    assert read_log(write("".join(lines))).block.column("loss").nonfinite.sum() == 1


def test_rows_without_a_loss(write: Write) -> None:
    rows = [(step, loss, "" if step > 200 else loss) for step, loss in enumerate(DECAY)]
    run = read_log(write(table("step,base,noise", *rows)), run="noise")
    assert list(run.block.columns) == ["loss"]
    assert len(run.block) == 201  # those of the chosen column
    whole = read_log(write(table("step,other,loss", *rows))).block
    assert len(whole) == 400  # the loss is no longer recorded, but the run goes on
    assert whole.column("loss").present.sum() == 201
