import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.readers.make_fixtures import FIXTURES, HF_LOSSES
from tests.readers.shapes import Write, values

from trimtab.core.errors import NoUsableLoss, UnreadableLog
from trimtab.core.signals import LOSS, Quality
from trimtab.readers import read_log

STATE = FIXTURES / "hf" / "every_1.json"
WINDOWED = FIXTURES / "hf" / "every_2.json"


def state(*records: dict[str, Any], step: int = 9) -> str:
    return json.dumps({"global_step": step, "log_history": records}, indent=2, sort_keys=True)


def record(step: int, loss: float, **others: float) -> dict[str, Any]:
    return {"step": step, "loss": loss, "learning_rate": 0.1, "epoch": 0.5, **others}


def test_a_nan_that_the_trainer_wrote_as_zero_is_a_nan_again() -> None:
    reading = read_log(STATE)
    assert reading.format == "hf"
    assert reading.block.step.tolist() == list(range(1, 13))
    wanted = [loss if math.isfinite(loss) else math.nan for loss in HF_LOSSES]
    assert values(reading.block, "loss") == pytest.approx(wanted, abs=0, nan_ok=True)
    assert math.isnan(reading.block.column("grad_norm").values[3])
    assert reading.block.column("grad_norm").values[8] == math.inf
    assert reading.block.quality(LOSS) is Quality.INFERRED
    (note,) = reading.notes
    assert "treated as NaN, which HF's Trainer writes this way: 2." in note


def test_the_mean_since_the_last_record_is_called_one() -> None:
    reading = read_log(WINDOWED)
    assert reading.block.step.tolist() == [2, 4, 6, 8, 10, 12]
    assert values(reading.block, "loss")[0] == (HF_LOSSES[0] + HF_LOSSES[1]) / 2
    assert reading.block.quality(LOSS) is Quality.WINDOW_MEAN
    assert reading.block.quality("grad_norm") is Quality.RAW
    assert "logs the mean of 'loss' since the previous record" in reading.notes[0]


@pytest.mark.parametrize(
    ("norm", "hidden"),
    [(math.nan, True), (math.inf, True), (0.0, True), (0.5, False)],
)
def test_when_zero_means_nan(write: Write, norm: float, hidden: bool) -> None:
    reading = read_log(write(state(record(1, 2.5, grad_norm=1.0), record(2, 0.0, grad_norm=norm))))
    assert math.isnan(reading.block.column("loss").values[1]) is hidden
    assert reading.block.quality(LOSS) is (Quality.INFERRED if hidden else Quality.RAW)


@pytest.mark.parametrize(
    "others",
    [
        {"reward": 0.5},
        {"rewards/format/mean": 1.0},
        {"reward_std": 0.0},
        {"kl": 0.1},
        {"entropy": 0.3},
        {"frac_reward_zero_std": 1.0},
    ],
)
def test_in_rl_a_batch_without_signal_has_neither_loss_nor_norm(
    write: Write, others: dict[str, float]
) -> None:
    rows = [record(n, 0.1, grad_norm=1.0, **others) for n in range(4)]
    rows += [record(n, 0.0, grad_norm=0.0, **others) for n in range(4, 9)]
    reading = read_log(write(state(*rows, record(9, 0.0, grad_norm=math.nan, **others))))
    assert values(reading.block, "loss")[4:9] == [0.0] * 5
    assert math.isnan(reading.block.column("loss").values[9])


def test_an_entropy_of_supervised_training_is_no_policy(write: Write) -> None:
    others = {"entropy": 0.3, "mean_token_accuracy": 0.9}
    rows = [record(1, 2.5, grad_norm=1.0, **others), record(2, 0.0, grad_norm=0.0, **others)]
    assert math.isnan(read_log(write(state(*rows))).block.column("loss").values[1])


@pytest.mark.parametrize("norm", [1.0, 2**0.5])
def test_a_norm_that_no_longer_changes_hides_a_nan(write: Write, norm: float) -> None:
    rows = [record(n, 2.5, grad_norm=1 + n / 9) for n in range(9)]
    rows += [record(n, 0.0, grad_norm=norm) for n in range(9, 20)]
    reading = read_log(write(state(*rows)))
    assert [math.isnan(loss) for loss in reading.block.column("loss").values] == [False] * 9 + [
        True
    ] * 11
    assert any("DeepSpeed ZeRO 3" in note and note.endswith(": 11.") for note in reading.notes)


@pytest.mark.parametrize(
    ("before", "norms"),
    [(0.0003, [0.01, 0.01, 0.01]), (2.5, [0.01, 0.02, 0.03]), (2.5, [1.0, 1.0])],
)
def test_a_task_that_is_solved_has_no_loss(write: Write, before: float, norms: list[float]) -> None:
    rows = [record(n, before, grad_norm=1 + n / 9) for n in range(9)]
    rows += [record(9 + n, 0.0, grad_norm=norm) for n, norm in enumerate(norms)]
    reading = read_log(write(state(*rows)))
    assert values(reading.block, "loss")[9:] == [0.0] * len(norms)


def test_without_a_gradient_norm_zero_stays_and_is_reported(write: Write) -> None:
    reading = read_log(write(state(record(1, 2.5), record(2, 0.0))))
    assert values(reading.block, "loss") == [2.5, 0.0]
    assert "without a gradient norm they are left as they are" in reading.notes[0]


def test_evaluation_and_the_last_record(write: Write) -> None:
    end = {"step": 2, "train_loss": 9.0, "train_runtime": 3.0, "epoch": 1.0}
    text = state(record(1, 2.5), {"step": 1, "eval_loss": 2.0}, record(2, 2.0), end)
    reading = read_log(write(text))
    assert values(reading.block, "loss") == [2.5, None, 2.0, None]
    assert values(reading.block, "eval_loss") == [None, 2.0, None, None]
    assert values(reading.block, "train_loss") == [None, None, None, 9.0]
    assert reading.notes == ()


def test_a_run_with_nothing_but_its_mean_has_no_loss(write: Write) -> None:
    with pytest.raises(NoUsableLoss, match="'train_loss'"):
        read_log(write(state({"step": 2, "train_loss": 9.0, "epoch": 1.0})))


@pytest.mark.parametrize("text", [state(), '{"log_history": [', '{"log_history": [1, 2]}'])
def test_a_history_without_records(write: Write, text: str) -> None:
    with pytest.raises(UnreadableLog, match="no log_history with records"):
        read_log(write(text))


def test_a_state_without_a_history(write: Write) -> None:
    with pytest.raises(UnreadableLog, match="has no log_history"):
        read_log(write('{"global_step": 3}'), format="hf")


def test_cut_anywhere_what_comes_before_is_read(write: Write) -> None:
    text = STATE.read_text()
    whole = read_log(STATE).block
    told = 0
    for end in range(text.index('"step": 1'), len(text), 17):
        try:
            reading = read_log(write(text[:end]))
        except UnreadableLog:
            assert '"step": 2' not in text[:end]
            continue
        number = len(reading.block)
        assert number >= text[:end].count("},") - 1
        assert values(reading.block, "lr") == values(whole, "lr")[:number]
        told += any("cut off or damaged" in note for note in reading.notes)
    assert told > 50


def test_one_line_is_as_good_as_many(write: Write) -> None:
    text = json.dumps(json.loads(STATE.read_text()))
    assert values(read_log(write(text, "log.jsonl")).block, "lr") == values(
        read_log(STATE).block, "lr"
    )


def test_of_an_output_folder_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(state(record(step, 2.5), step=step))
    reading = read_log(tmp_path)
    assert reading.path == tmp_path / "checkpoint-100" / "trainer_state.json"
    assert reading.block.step.tolist() == [100]
    assert reading.notes == (
        "Of the folder, 'checkpoint-100/trainer_state.json' is read.",
        "It is the newest of 3 such logs; not read: 'checkpoint-10/trainer_state.json', "
        "'checkpoint-9/trainer_state.json'.",
    )
    (tmp_path / "trainer_state.json").write_text(state(record(120, 2.5), step=120))
    assert read_log(tmp_path).block.step.tolist() == [120]
    assert read_log(tmp_path / "checkpoint-9").block.step.tolist() == [9]


def test_a_checkpoint_that_was_never_finished_gives_way(tmp_path: Path) -> None:
    for step, text in ((9, state(record(9, 2.5))), (10, "")):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(text)
    assert read_log(tmp_path).block.step.tolist() == [9]


def test_a_copy_under_a_different_name_is_known_by_its_content(tmp_path: Path) -> None:
    shutil.copy(STATE, tmp_path / "history.txt")
    assert read_log(tmp_path / "history.txt").format == "hf"
