"""After a rollback the judge is what it was: it judges as if the run had never left."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.synthetic import Array, add_spike, falling_loss
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Column, Event
from trimtab.core.findings import Severity, Symptom
from trimtab.core.incidents import Transition
from trimtab.judge import Judge


def run_of(loss: Array, first: int, *, skipped: int = 0) -> dict[str, Array]:
    """The signals of steps from `first` on, each a function of the step alone."""
    steps = np.arange(first, len(loss))
    noise = np.random.default_rng(2).normal(0.0, 0.05, len(loss) + skipped)
    return {
        "loss": loss[steps],
        "grad_norm": np.exp(noise[steps]),
        "lr": np.full(len(steps), 3e-4),
        "adam_step": steps + 1.0,
        "param_norm": 10 + steps * 1e-3,
        "fingerprint": steps + skipped + 1000.0,
    }


def journal(parts: Iterable[tuple[dict[str, Array], int, Event | None]]) -> Block:
    """A journal of several attempts; each comes with its first step and the rollback before it."""
    blocks, events, tick = [], [Event(kind="recovery", tick=0, step=0)], 0
    for attempt, (signals, first, rollback) in enumerate(parts):
        length = len(signals["loss"])
        if rollback is not None:
            events.append(dataclasses.replace(rollback, tick=tick))
        blocks.append(
            Block.from_columns(
                {name: Column.complete(values) for name, values in signals.items()},
                step=np.arange(first, first + length),
                tick=np.arange(tick, tick + length),
                attempt=np.full(length, attempt),
                data_position=np.arange(first, first + length),
            )
        )
        tick += length
    return dataclasses.replace(Block.concat(blocks), events=tuple(events))


def rollback_to(step: int, **facts: object) -> Event:
    return Event(kind="rollback", tick=0, step=step, facts={"to": step, **facts})


def cut(signals: dict[str, Array], length: int) -> dict[str, Array]:
    return {name: values[:length] for name, values in signals.items()}


def judge_all(run: Block, size: int) -> Judge:
    judge = Judge()
    for block in run.cut(size):
        judge.update(block)
    judge.finish()
    return judge


def what_happened(judge: Judge) -> list[tuple[int, str, tuple[str, ...]]]:
    return [(i.onset.step, str(i.incident_class), i.symptoms) for i in judge.incidents]


@settings(max_examples=12, deadline=None)
@given(st.integers(30, 990), st.integers(1, 300), st.sampled_from([1, 7, 300, 5000]))
def test_a_rollback_changes_nothing_about_the_judgement(left: int, lost: int, size: int) -> None:
    loss = add_spike(falling_loss(1200), 1000)
    straight = judge_all(journal([(run_of(loss, 0), 0, None)]), 100)
    to = max(left - lost, 0)
    parts = [(cut(run_of(loss, 0), left), 0, None), (run_of(loss, to), to, rollback_to(to))]
    returned = judge_all(journal(parts), size)
    assert what_happened(returned) == what_happened(straight)
    assert len(straight.incidents) == 1


def test_without_the_event_a_new_attempt_is_a_restart() -> None:
    loss = falling_loss(900)
    signals = [(cut(run_of(loss, 0), 600), 0, None), (run_of(loss, 560), 560, None)]
    judge = Judge()
    judge.update(journal(signals))
    assert judge.finish().changes == ()


def spiked(at: int) -> Array:
    return add_spike(falling_loss(1200), at)


@pytest.mark.parametrize("size", [1, 50, 5000])
def test_an_open_incident_closes_as_rolled_back_and_one_that_recurs_is_new(size: int) -> None:
    loss = spiked(700)
    parts = [
        (cut(run_of(loss, 0), 703), 0, None),
        (cut(run_of(loss, 680), 23), 680, rollback_to(680)),
        (run_of(falling_loss(1200), 640), 640, rollback_to(640)),
    ]
    judge = Judge()
    changes = [c for block in journal(parts).cut(size) for c in judge.update(block).changes]
    judge.finish()
    assert [i.number for i in judge.incidents] == [1, 2]
    assert all(i.rolled_back and i.incident_class is None for i in judge.incidents)
    assert [i.onset.step for i in judge.incidents] == [700, 700]
    closed = [c for c in changes if c.transition is Transition.ROLLED_BACK]
    assert [c.incident.number for c in closed] == [1, 2]
    assert closed[0].incident.end is not None


def test_a_rollback_at_the_very_end_closes_the_incident_too() -> None:
    run = journal([(cut(run_of(spiked(700), 0), 703), 0, None)])
    event = dataclasses.replace(rollback_to(680), tick=703)
    judge = Judge()
    judge.update(dataclasses.replace(run, events=(*run.events, event)))
    judge.finish()
    assert [i.rolled_back for i in judge.incidents] == [True]


def test_records_that_were_taken_back_explain_nothing_later() -> None:
    """The spike of the attempt that was given up is no past of the second incident."""
    loss = spiked(700)
    second = add_spike(falling_loss(1200), 900)
    parts = [
        (cut(run_of(loss, 0), 703), 0, None),
        (run_of(second, 680), 680, rollback_to(680)),
    ]
    run = journal(parts)
    judge = judge_all(run, 100)
    first, later = judge.incidents
    report = judge.explain(later, run)
    assert report.symptoms.loss_before == pytest.approx(float(loss[690]), abs=0.2)
    assert judge.explain(first, run).outcome == "rolled back"
    assert "comes again" in judge.explain(first, run).action.instruction


def test_data_that_is_skipped_in_a_later_epoch_is_no_repeated_batch() -> None:
    loss = falling_loss(1200)
    signals = run_of(loss, 0)
    signals["fingerprint"] = np.asarray(np.arange(1200) % 200 + 1000.0, dtype=np.float64)
    again = {name: values[500:] for name, values in signals.items()}
    again["fingerprint"] = np.asarray((np.arange(500, 1200) + 20) % 200 + 1000.0, np.float64)
    event = rollback_to(500, skip=[[500, 519]])
    run = journal([(cut(signals, 540), 0, None), (again, 500, event)])
    judge = Judge()
    findings = judge.update(run).findings
    assert not [f for f in findings if f.severity is Severity.ALARM]


def test_a_replay_that_differs_from_the_earlier_attempt_is_found() -> None:
    """The earlier attempt's losses are not rewound: they prove the restore."""
    loss = falling_loss(900, noise=0.0)
    wrong = {**run_of(loss, 560)}
    wrong["loss"][100:] += 0.5
    parts = [(cut(run_of(loss, 0), 700), 0, None), (wrong, 560, rollback_to(560))]
    findings = Judge().update(journal(parts)).findings
    assert Symptom.REFERENCE_GAP in {finding.symptom for finding in findings}
    held = [parts[0], (wrong, 560, rollback_to(560, hold=["lr"]))]
    findings = Judge().update(journal(held)).findings
    assert Symptom.REFERENCE_GAP not in {finding.symptom for finding in findings}


def test_a_rollback_deeper_than_the_history_is_a_restart() -> None:
    loss = falling_loss(6000)
    run = journal([(run_of(loss, 0), 0, None), (run_of(loss, 100), 100, rollback_to(100))])
    judge = Judge()
    found = [f.symptom for block in run.cut(400) for f in judge.update(block).findings]
    assert not {Symptom.DATA_BACK, Symptom.STATE_LOST, Symptom.REPEATED_BATCH} & set(found)


@pytest.mark.parametrize(("is_nan", "recurs"), [(False, True), (True, False)])
def test_only_an_incident_of_the_same_kind_has_come_back(is_nan: bool, recurs: bool) -> None:
    first = spiked(700)
    second = spiked(760) if not is_nan else falling_loss(1200)
    if is_nan:
        second[760] = np.nan
    parts = [
        (cut(run_of(first, 0), 703), 0, None),
        (run_of(second, 680), 680, rollback_to(680)),
    ]
    run = journal(parts)
    judge = Judge()
    judge.update(run)
    judge.finish()
    action = judge.explain(judge.incidents[1], run).action
    assert (action.kind is ActionKind.LOWER_LR) is recurs
