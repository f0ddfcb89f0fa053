"""TensorBoard's own reader reads what is written; a kill repeats nothing."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.runs import append, open_incident, ship

from trimtab.integrations.sinks.tensorboard_sink import TensorBoardSink
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.observe.shipping.cursor import Cursor
from trimtab.readers.reading import read_log


@pytest.fixture(autouse=True)
def no_postmortems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.observe.shipping.shipper.POSTMORTEM_SECONDS", 0.0)


def read(folder: Path) -> Any:
    stock = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = stock.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def write(run: RunDirectory, attempts: int = 1) -> None:
    with JournalWriter(run) as journal:
        for attempt in range(attempts):
            for step in range(10 * attempt, 40):
                loss = math.nan if step == 30 else math.inf if step == 31 else 3.0 - step / 100
                values = {"loss": loss, "clock": 1.7e9 + step + 100 * attempt}
                journal.append(step, values, attempt=attempt)
        open_incident(journal, 30)


def test_each_attempt_is_a_folder_that_tensorboard_reads(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write(run, attempts=2)
    assert ship(run, TensorBoardSink())
    folder = run.home / "tensorboard" / "trimtab"
    first, second = read(folder / "attempt-0"), read(folder / "attempt-1")
    losses = first.Scalars("trimtab/loss")
    assert [scalar.step for scalar in losses] == list(range(40))
    assert losses[7].value == pytest.approx(2.93)
    assert losses[7].wall_time == 1.7e9 + 7
    assert math.isnan(losses[30].value)
    assert losses[31].value == math.inf
    assert [scalar.step for scalar in second.Scalars("trimtab/loss")] == list(range(10, 40))
    (text,) = second.Tensors("trimtab/incident/0001")
    assert b"loss spike" in text.tensor_proto.string_val[0]
    # Trimtab's own reader agrees, with every checksum verified.
    block = read_log(folder / "attempt-0").block
    assert len(block) == 40


def test_what_a_killed_shipper_wrote_beyond_its_position_is_cut_off(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write(run)
    assert ship(run, TensorBoardSink())
    (file,) = run.home.rglob("events.out.tfevents.*")
    whole = file.read_bytes()
    cursor = Cursor(run, "tensorboard")
    with file.open("ab") as torn:
        torn.write(whole[-300:-5])
    cursor.save()
    with JournalWriter(run) as journal:
        append(journal, 40)
    assert ship(run, TensorBoardSink())
    steps = [scalar.step for scalar in read(file.parent).Scalars("trimtab/loss")]
    assert steps == list(range(41))


def test_a_log_directory_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "x1")
    write(run)
    monkeypatch.setenv("TRIMTAB_TENSORBOARD_DIR", str(tmp_path / "logs"))
    assert ship(run, TensorBoardSink())
    (file,) = (tmp_path / "logs").rglob("events.out.tfevents.*")
    assert file.parent == tmp_path / "logs" / "x1" / "trimtab" / "attempt-0"
