import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.readers.make_fixtures import FIXTURES, HF_LOSSES
from tests.readers.shapes import Write, assert_reads, values

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
    assert "2 records have loss 0 and a gradient norm that is 0 or not finite: read as NaN" in note


def test_the_mean_since_the_last_record_is_called_one() -> None:
    reading = read_log(WINDOWED)
    assert reading.block.step.tolist() == [2, 4, 6, 8, 10, 12]
    assert values(reading.block, "loss")[0] == (HF_LOSSES[0] + HF_LOSSES[1]) / 2
    assert reading.block.quality(LOSS) is Quality.WINDOW_MEAN
    assert reading.block.quality("grad_norm") is Quality.RAW
    assert "logs the mean of 'loss' since the previous record" in reading.notes[0]


POLICIES = ("reward", "rewards/format/mean", "reward_std", "kl", "entropy", "frac_reward_zero_std")
SUPERVISED = ("entropy", "mean_token_accuracy")


@pytest.mark.parametrize(
    ("losses", "norms", "others", "found"),
    [
        ("2.5 0", "1 nan", (), "2.5 nan"),
        ("2.5 0", "1 inf", (), "2.5 nan"),
        ("2.5 0", "1 0", (), "2.5 nan"),
        ("2.5 0", "1 0.5", (), "2.5 0"),
        # In RL a batch without signal has neither loss nor norm.
        *(("0.1 0 0 0 0", "1 0 0 0 nan", (name,), "0.1 0 0 0 nan") for name in POLICIES),
        ("2.5 0", "1 0", SUPERVISED, "2.5 nan"),
        # A norm that no longer changes hides a NaN, unless the task was solved before.
        ("2.5 2.4 0 0 0", "1.1 1.2 1 1 1", (), "2.5 2.4 nan nan nan"),
        ("2.5 2.4 0 0 0", "1.1 1.2 1.41 1.41 1.41", (), "2.5 2.4 nan nan nan"),
        ("0.0003 0.0003 0 0 0", "1.1 1.2 0.01 0.01 0.01", (), "0.0003 0.0003 0 0 0"),
        ("2.5 0 0 0", "1 0.01 0.02 0.03", (), "2.5 0 0 0"),
        ("2.5 0 0", "2 1 1", (), "2.5 0 0"),
    ],
)
def test_when_zero_means_nan(
    write: Write, losses: str, norms: str, others: tuple[str, ...], found: str
) -> None:
    pairs = zip(map(float, losses.split()), map(float, norms.split()), strict=True)
    rows = [
        record(step, loss, grad_norm=norm, **dict.fromkeys(others, 0.5))
        for step, (loss, norm) in enumerate(pairs)
    ]
    reading = read_log(write(state(*rows)))
    assert_reads(reading, f"loss={found}", ...)
    assert reading.block.quality(LOSS) is (Quality.INFERRED if "nan" in found else Quality.RAW)
    told = [note for note in reading.notes if "read as NaN" in note]
    assert sum(int(note.split(" ")[0]) for note in told) == found.count("nan")


def test_without_a_gradient_norm_zero_stays_and_is_reported(write: Write) -> None:
    reading = read_log(write(state(record(1, 2.5), record(2, 0.0))))
    assert_reads(reading, "loss=2.5 0", ...)
    assert "read as 0, as there is no gradient norm to tell by" in reading.notes[0]


def test_evaluation_and_the_last_record(write: Write) -> None:
    end = {"step": 2, "train_loss": 9.0, "train_runtime": 3.0, "epoch": 1.0}
    text = state(record(1, 2.5), {"step": 1, "eval_loss": 2.0}, record(2, 2.0), end)
    wanted = "loss=2.5 - 2 -; eval_loss=- 2 - -; train_loss=- - - 9"
    assert_reads(read_log(write(text)), wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (state({"step": 2, "train_loss": 9.0, "epoch": 1.0}), "'train_loss'"),
        (state(), "no log_history with records"),
        ('{"log_history": [', "no log_history with records"),
        ('{"log_history": [1, 2]}', "no log_history with records"),
        ('{"global_step": 3}', "has no log_history"),
    ],
)
def test_a_state_without_losses(write: Write, text: str, message: str) -> None:
    with pytest.raises((UnreadableLog, NoUsableLoss), match=message):
        read_log(write(text), format="hf")


def test_cut_anywhere_what_comes_before_is_read(write: Write) -> None:
    text = STATE.read_text()
    whole = read_log(STATE).block
    told = 0
    for end in range(text.index('"step": 1'), len(text), 53):
        try:
            reading = read_log(write(text[:end]))
        except UnreadableLog:
            assert '"step": 2' not in text[:end]
            continue
        number = len(reading.block)
        assert number >= text[:end].count("},") - 1
        assert values(reading.block, "lr") == values(whole, "lr")[:number]
        told += any("cut off or damaged" in note for note in reading.notes)
    assert told > 15


def test_one_line_under_another_name_is_as_good_as_many(write: Write) -> None:
    reading = read_log(write(json.dumps(json.loads(STATE.read_text())), "log.jsonl"))
    assert reading.format == "hf"
    assert values(reading.block, "lr") == values(read_log(STATE).block, "lr")


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
    (tmp_path / "checkpoint-130").mkdir()
    (tmp_path / "checkpoint-130" / "trainer_state.json").touch()  # it was never finished
    assert read_log(tmp_path).block.step.tolist() == [120]
