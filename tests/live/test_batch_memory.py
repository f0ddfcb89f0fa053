"""The batches that a live run keeps: bounded, exact, and shown only as the user allows."""

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.observing import observe
from tests.kit.synthetic import incident_of
from tests.kit.tiny import journal_of, make_model
from tests.kit.user_loop import take_step, watching
from tests.live.test_do_no_harm import planted
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.block import Record
from trimtab.core.config import Config, LiveConfig
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, Moment
from trimtab.journal import RunDirectory
from trimtab.journal.batches.batch_report import BatchReport
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.live.host.batch_memory import (
    MAX_FROZEN,
    STEPS_BEFORE,
    BatchMemory,
    UsualStep,
)
from trimtab.live.measure.batch_facts import VALUES
from trimtab.live.ranks.exchange import TrainStep
from trimtab.report.incident_files import read_batches

BAD_STEP, BAD_TOKEN, BAD_ROW = 80, 31, 2
STEPS = 120


def incident(number: int, onset: int) -> Incident:
    return incident_of(Moment(step=onset, tick=onset, loss=9.0), number=number)


def rows(seed: int, high: int = 50, shape: tuple[int, int] = (4, 16)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def add(memory: BatchMemory, step: int, token_rows: Any, loss: float = 3.0) -> None:
    note = TrainStep(step=step, data_position=step, token_rows=(token_rows,))
    memory.add(Record(step=step, tick=step, signals={"loss": loss}), note)


def filled(memory: BatchMemory, steps: int, **options: Any) -> BatchMemory:
    for step in range(steps):
        add(memory, step, rows(step, **options))
    return memory


def written(run: RunDirectory, memory: BatchMemory) -> list[BatchReport]:
    memory.close()
    reports, notes = read_batches(run)
    assert notes == []
    return list(reports)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


class TestBatchMemory:
    def test_it_never_holds_more_than_it_may(self, run: RunDirectory) -> None:
        by_steps = filled(BatchMemory(LiveConfig(batch_memory_steps=10), run), 100)
        assert len(by_steps._batches) == 10
        by_bytes = filled(BatchMemory(LiveConfig(), run, max_bytes=10_000), 100)
        assert 8_000 < by_bytes._num_bytes <= 10_000
        assert by_bytes._num_bytes == sum(batch.num_bytes for batch in by_bytes._batches)
        none = filled(BatchMemory(LiveConfig(batch_memory_steps=0), run), 100)
        assert len(none._batches) == 0

    @pytest.mark.parametrize("steps", [50, 400, 5000])
    def test_the_counts_are_those_of_every_batch_before_the_incident(
        self, steps: int, run: RunDirectory
    ) -> None:
        memory = filled(BatchMemory(LiveConfig(batch_memory_steps=300), run), steps)
        onset = steps - 4
        memory.freeze(incident(1, onset))
        kept = memory._frozen[onset]
        first = kept.before[0].step
        expected = np.zeros(50, dtype=np.int64)
        for step in range(first):
            expected += np.bincount(rows(step).reshape(-1), minlength=50)
        assert np.array_equal(np.resize(kept.counts, 50) if first else expected, expected)
        assert [batch.step for batch in kept.around] == list(range(onset - 8, steps))
        assert len(kept.before) == min(STEPS_BEFORE, onset - 8)

    def test_reports_of_one_step_are_written_one_after_the_other(self, run: RunDirectory) -> None:
        memory = filled(BatchMemory(LiveConfig(batch_memory_steps=100), run), 100)
        for step in range(100, 130):
            memory.freeze(incident(1, 90))
            memory._examine(memory._frozen[90])
            add(memory, step, rows(step))
        (report,) = written(run, memory)
        assert report.num_batches == 130 - (90 - 8)  # the last one has all of them
        assert not memory._shield.is_down

    def test_many_incidents_are_all_reported(self, run: RunDirectory) -> None:
        memory = filled(BatchMemory(LiveConfig(), run), 900)
        incidents = [incident(number, 80 * number) for number in range(1, 11)]
        for one in incidents:
            memory.freeze(one)
            assert len(memory._frozen) <= MAX_FROZEN
        onsets = [report.onset_tick for report in written(run, memory)]
        assert onsets == [one.onset.tick for one in incidents]

    def test_an_incident_from_before_the_memory_is_not_reported(self, run: RunDirectory) -> None:
        memory = BatchMemory(LiveConfig(), run)
        for step in range(1000, 1100):
            add(memory, step, rows(step))
        memory.freeze(incident(1, 500))
        assert written(run, memory) == []

    def test_data_that_is_odd_long_after_the_onset_is_looked_at_there(
        self, run: RunDirectory
    ) -> None:
        memory = filled(BatchMemory(LiveConfig(), run), 400)
        found = Finding(
            detector="token-mix",
            symptom=Symptom.ODD_TOKENS,
            severity=Severity.ALARM,
            signal="token_rarity",
            step=300,
            tick=300,
            value=9.0,
        )
        memory.freeze(dataclasses.replace(incident(1, 100), findings=(found,)))
        (report,) = written(run, memory)
        assert report.onset_tick == 300

    def test_a_step_far_from_usual_is_written_before_anybody_has_judged_it(
        self, run: RunDirectory
    ) -> None:
        memory = filled(BatchMemory(LiveConfig(), run, decode=lambda ids: "a text"), 100)
        add(memory, 100, rows(100), loss=9.0)
        for examination in memory._examinations:
            examination.wait()
        add(memory, 101, rows(101))
        for examination in memory._writing:
            examination.wait()  # and here the process is killed
        (report,), _ = read_batches(run)
        assert report.step == 100
        assert report.rows[0].text == "a text"


def test_a_loop_with_noisy_losses_is_rarely_far_from_usual() -> None:
    usual, draw = UsualStep(), np.random.default_rng(0)
    losses = 2.0 * np.exp(0.5 * draw.normal(size=5000))  # one sequence a step
    far = [usual.is_far(Record(step=0, tick=0, signals={"loss": float(v)})) for v in losses]
    assert sum(far) < 50


def test_usual_steps_are_not_far_and_a_negative_loss_may_be() -> None:
    usual = UsualStep()
    losses = [-2.0 + 0.01 * (step % 9) for step in range(100)]
    assert not any(usual.is_far(Record(step=0, tick=0, signals={"loss": v})) for v in losses)
    for value in (2.0, math.nan, math.inf, -math.inf):
        assert usual.is_far(Record(step=0, tick=0, signals={"loss": value}))
    assert not usual.is_far(Record(step=0, tick=0, signals={"loss": -2.0}))


@pytest.mark.parametrize(
    "place",
    [
        "trimtab.live.measure.batch_facts.BatchFacts.pop_token_rows",
        "trimtab.live.host.batch_memory.examine",
    ],
)
def test_a_bug_in_it_leaves_every_record_and_every_report(place: str, tmp_path: Path) -> None:
    with planted(place, lambda: True):
        train(tmp_path)
    assert len(journal_of(tmp_path)) == STEPS
    (folder,) = (tmp_path / "trimtab" / "incidents").iterdir()
    assert (folder / "postmortem.md").exists()


def train_on_rank(rank: int, folder: Path) -> int:
    model = DistributedDataParallel(make_model())
    data = [torch.full((2, 5), rank) for _ in range(6)]
    with watching(folder, model=model) as run:
        for step in run.guard.steps(data):
            losses = losses_of(model, *step)
            take_step(run.guard, run.optimizer, losses.mean(), token_loss=losses)
        monitor = run.guard._monitor
        assert not monitor.shields.failed
        assert monitor.facts.row_losses.copies == []
        recorder: Any = monitor.recorder
        kept = list(recorder._batches._batches) if recorder.is_recording else []
    assert all((batch.parts[0] == rank).all() for batch in kept)
    assert all(batch.losses[0].shape == (2, VALUES) for batch in kept)
    return len(kept)


def test_the_first_rank_keeps_its_sequences_and_the_others_none(tmp_path: Path) -> None:
    first, second = run_ranks(train_on_rank, 2, tmp_path)
    assert first >= 4
    assert second == 0


def stream(steps: int = STEPS, accumulate: int = 1) -> Iterator[torch.Tensor]:
    """Batches of the first 24 tokens; at one step a row is one token that never came before."""
    generator = torch.Generator().manual_seed(1)
    for position in range(steps * accumulate):
        batch = torch.randint(0, 24, (4, 17), generator=generator)
        if position // accumulate == BAD_STEP and position % accumulate == accumulate - 1:
            batch[BAD_ROW] = BAD_TOKEN
        yield batch


def losses_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1]).float()
    targets = batch[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(
        targets
    )


sgd = partial(torch.optim.SGD, lr=0.01)


def train(run_dir: Path, *, accumulate: int = 1, token_loss: bool = True, **options: Any) -> None:
    model = make_model()
    model.dropout.p = 0.0
    with torch.no_grad():
        model.head.weight[BAD_TOKEN] = -4.0 * model.head.weight[BAD_TOKEN].sign()
    with watching(run_dir, model=model, make=sgd, **options) as run:
        for step in run.guard.steps(stream(accumulate=accumulate), accumulate=accumulate):
            for batch in step:
                losses = losses_of(model, batch)
                loss = losses.mean()
                is_high = BAD_STEP <= step.number < BAD_STEP + 6  # one batch alone is no incident
                spike = (5.0 if step.number == BAD_STEP else 4.0) if is_high else 1.0
                given = {"token_loss": losses} if token_loss else {}
                run.guard.record(loss=loss * spike, tokens=batch[:, 1:].numel(), **given)
                loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    observe(run_dir)


def saved(run_dir: Path) -> dict[str, Any]:
    (path,) = (run_dir / "trimtab" / "incidents").glob("*/batch.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one batch a step, with the losses of its tokens; tests only read it."""
    run_dir = tmp_path_factory.mktemp("watched")
    train(run_dir)
    return run_dir


class TestLive:
    @pytest.mark.parametrize("accumulate", [1, 3])
    def test_the_bad_row_is_named_by_position_row_and_token(
        self, accumulate: int, watched: Path, tmp_path: Path
    ) -> None:
        if accumulate > 1:
            train(tmp_path, accumulate=accumulate)
        batch = saved(watched if accumulate == 1 else tmp_path)
        worst = batch["rows"][0]
        assert batch["step"] == BAD_STEP
        assert worst["data_position"] == BAD_STEP * accumulate + accumulate - 1
        assert worst["row"] == BAD_ROW
        assert {"rare tokens", "repeated phrase"} <= set(worst["reasons"])
        assert worst["loss"] > batch["usual"]["loss"]
        assert worst["token_ids"] == [BAD_TOKEN] * 17
        assert [token["id"] for token in batch["tokens"]] == [BAD_TOKEN]

    def test_report_postmortem_and_figure_have_it(self, watched: Path) -> None:
        (folder,) = (watched / "trimtab" / "incidents").iterdir()
        text = (folder / "postmortem.md").read_text()
        line = f"Row {BAD_ROW} of the batch at position {BAD_STEP}: rare tokens"
        assert line in text
        assert f"| {BAD_TOKEN} | 17 | 100 % | 0 % |" in text
        report = trimtab.diagnose(watched)
        (found,) = report.incidents
        assert found.batch is not None
        assert found.batch.rows[0].token_ids == (BAD_TOKEN,) * 17
        shown = report.to_dict()["incidents"][0]["batch"]
        assert shown["tokens"][0]["id"] == BAD_TOKEN
        assert "token_ids" not in shown["rows"][0]

    def test_text_is_written_only_if_the_user_allows_it(self, tmp_path: Path) -> None:
        class Tokenizer:
            def decode(self, ids: list[int]) -> str:
                return " ".join(f"<w{id}>" for id in ids)

        train(tmp_path / "ids", token_loss=False)
        train(tmp_path / "text", batch_text=Tokenizer())
        for name, has_text in (("ids", False), ("text", True)):
            (folder,) = (tmp_path / name / "trimtab" / "incidents").iterdir()
            files = "".join(path.read_text() for path in folder.iterdir())
            assert (f"w{BAD_TOKEN}" in files) is has_text
            assert f"<w{BAD_TOKEN}>" not in (folder / "postmortem.html").read_text()  # escaped

    def test_without_privacy_text_only_the_batch_file_has_it(self, tmp_path: Path) -> None:
        config = Config.from_dict({"privacy": {"text": False}})
        train(tmp_path, batch_text=lambda ids: " ".join(f"w{id}" for id in ids), config=config)
        (folder,) = (tmp_path / "trimtab" / "incidents").iterdir()
        with_text = {path.name for path in folder.iterdir() if f"w{BAD_TOKEN}" in path.read_text()}
        assert with_text == {"batch.json"}
        assert f"w{BAD_TOKEN}" not in (tmp_path / "trimtab" / "observer.jsonl").read_text()

    def test_a_tokenizer_that_fails_leaves_the_ids(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def decode(ids: list[int]) -> str:
            raise KeyError(ids[0])

        train(tmp_path, batch_text=decode)
        assert saved(tmp_path)["tokens"][0]["id"] == BAD_TOKEN
        assert any("the tokenizer failed" in message for message in caplog.messages)

    def test_text_needs_a_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="tokenizer"):
            train(tmp_path, batch_text=True)

    def test_a_damaged_batch_file_is_a_note(self, watched: Path, tmp_path: Path) -> None:
        shutil.copytree(watched, tmp_path / "run")
        for path in (tmp_path / "run" / "trimtab").rglob("batch*/*.json"):
            path.write_text('{"rows": 3}')
        (path,) = (tmp_path / "run" / "trimtab" / "incidents").glob("*/batch.json")
        path.write_text('{"rows": 3}')
        report = trimtab.diagnose(tmp_path / "run")
        assert report.incidents[0].batch is None
        assert any("batch.json cannot be read" in note for note in report.notes)

    def test_a_resumed_run_keeps_what_was_written_before(
        self, watched: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(watched, tmp_path / "run")
        before = saved(tmp_path / "run")
        with watching(tmp_path / "run", make=sgd, facts={"step": STEPS}) as run:
            for step in run.guard.steps(list(stream(5)), data_position=STEPS):
                run.step(*step)
        assert saved(tmp_path / "run") == before
