"""The journal of a run that went back: read and judged, live and later, without false findings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.recovering import drive, plain_run, real
from tests.kit.tiny import batches as token_batches
from tests.kit.tiny import journal_of, loss_of, make_model

import trimtab
from trimtab.core import signals
from trimtab.core.block import Event
from trimtab.core.incidents import Incident
from trimtab.live.guard import Guard

EVERY_STEP = {"telemetry_every": 1}


def rollbacks_in(folder: Path) -> list[Event]:
    return [event for event in journal_of(folder).events if event.kind == "rollback"]


@pytest.mark.parametrize("lag", [0, 2, 5])
def test_what_was_under_way_is_delivered_with_the_old_attempt(lag: int, tmp_path: Path) -> None:
    settings = {"lag_steps": lag, **EVERY_STEP}
    drive(plain_run(), tmp_path, 70, back={60: 45}, settings=settings)
    block = journal_of(tmp_path)
    assert block.step.tolist() == [*range(60), *range(40, 70)]
    assert block.attempt.tolist() == [0] * 60 + [1] * 30
    assert block.tick.tolist() == list(range(90))
    assert block.data_position.tolist() == block.step.tolist()
    # Telemetry rides along with later steps; none of it is lost at the rollback.
    for name in (signals.PARAM_NORM, signals.ADAM_V_NORM, signals.LOSS):
        assert block.column(name).present.all(), name
    first, again = block[40:60], block[60:80]
    for name in (signals.LOSS, signals.GRAD_NORM, signals.PARAM_NORM, signals.FINGERPRINT):
        assert np.array_equal(first.column(name).values, again.column(name).values), name
    assert not block.column(signals.STEP_SECONDS).present[60]  # the restore is no slow step


def test_batches_are_compared_with_the_tokens_before_them_again(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="recover") as guard:
        for step in guard.steps(token_batches(40)):
            for batch in step:
                loss = loss_of(model, batch)
                guard.record(loss=loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step.number == 29 and guard.recovery and guard.recovery.attempt == 0:
                guard.rollback(to=10)
    rarity = journal_of(tmp_path).column(signals.TOKEN_RARITY)
    assert rarity.present.all()
    assert np.array_equal(rarity.values[10:30], rarity.values[30:50])


def test_telemetry_falls_on_the_same_steps_again(tmp_path: Path) -> None:
    drive(plain_run(), tmp_path, 70, back={57: 45}, settings={"telemetry_every": 4})
    block = journal_of(tmp_path)
    measured = block.step[block.column(signals.PARAM_NORM).present]
    assert set(measured.tolist()) == set(range(0, 70, 4))


def test_the_rollback_is_an_event_with_all_its_facts(tmp_path: Path) -> None:
    drive(
        plain_run(), tmp_path, 70, back={60: 45}, skip=[41, 42, 50], hold=["lr"], reason="to test"
    )
    (event,) = rollbacks_in(tmp_path)
    assert (event.step, event.tick) == (40, 60)
    assert event.facts == {
        "from": 60,
        "to": 40,
        "skip": [[41, 42], [50, 50]],
        "hold": ["lr"],
        "reason": "to test",
        "steps_lost": 20,
    }


def test_healthy_runs_have_no_incident_live_or_later(tmp_path: Path) -> None:
    seen: list[Incident] = []
    run = plain_run(loader=tokens(600))
    drive(
        run,
        tmp_path,
        330,
        back={200: 150, 260: 200, 300: 180},
        settings=EVERY_STEP,
        on_step=lambda guard, step: seen.extend(real(guard.incidents)),
    )
    assert seen == []
    report = trimtab.diagnose(tmp_path)
    assert real(one.incident for one in report.incidents) == []


def tokens(count: int) -> Any:
    """Batches with fingerprints that all differ."""
    dice = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 16, 8, generator=dice)
    return [(part, part.sum(dim=1, keepdim=True)) for part in inputs]


def test_an_incident_that_was_rolled_back_is_the_same_live_and_later(tmp_path: Path) -> None:
    run = plain_run(loader=tokens(600))
    kept: list[list[Incident]] = []

    def damage(guard: Any, step: int) -> None:
        if step == 230 and guard.recovery.attempt == 0:
            with torch.no_grad():
                run.model.get_submodule("head").get_parameter("weight").mul_(-20.0)
        if step == 239:
            kept.append(real(guard.incidents))

    drive(run, tmp_path, 300, back={240: 225}, on_step=damage)
    during, after = kept
    assert [i.rolled_back for i in during] == [False]
    assert [i.rolled_back for i in after] == [True]
    report = trimtab.diagnose(tmp_path)
    found = [one for one in report.incidents if one.incident in real([one.incident])]
    assert [one.incident for one in found] == after
    assert [one.outcome for one in found] == ["rolled back"]
    pages = (tmp_path / "trimtab" / "incidents").rglob("postmortem.md")
    assert any("rolled back" in page.read_text() for page in pages)


def test_skipped_positions_are_quarantined_and_passed_over_after_a_relaunch(
    tmp_path: Path,
) -> None:
    drive(plain_run(), tmp_path, 50, back={30: 20}, skip=range(22, 25), reason="bad shard")
    assert 22 not in journal_of(tmp_path)[30:].data_position
    lines = (tmp_path / "trimtab" / "quarantine.jsonl").read_text().splitlines()
    (entry,) = map(json.loads, lines)
    assert (entry["first"], entry["last"], entry["step"]) == (22, 24, 20)
    assert entry["reason"] == "bad shard"

    run = plain_run()
    guard = trimtab.watch(
        run.model, run.optimizers, run_dir=tmp_path, mode="recover", facts={"step": 20}
    )
    with guard:
        positions = [s.data_position for s in guard.steps(range(30), data_position=20)]
    assert positions == [20, 21, *range(25, 50)]


def test_a_damaged_line_of_the_quarantine_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "trimtab"
    home.mkdir()
    (home / "quarantine.jsonl").write_text('{"first": 3, "last": 4}\n{"fir\n')
    run = plain_run()
    guard = trimtab.watch(run.model, run.optimizers, run_dir=tmp_path, mode="recover")
    with guard:
        positions = [s.data_position for s in guard.steps(range(7))]
    assert positions == [0, 1, 2, 5, 6]
    assert "line 2" in caplog.text


def test_the_gate_returns_too(tmp_path: Path) -> None:
    guards: list[Guard] = []
    states = []

    def look(guard: Any, step: int) -> None:
        guards.append(guard)
        if step == 29:
            states.append(guard.state_dict()["gate"])

    drive(plain_run(), tmp_path, 40, back={35: 0}, clip=0.5, on_step=look)
    first, again = states
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, again[name]), name
        else:
            assert value == again[name]
