"""The resume audit without torch: what is compared, and where the journal has a batch."""

import math
from typing import Any

import numpy as np
import pytest

from trimtab.core.block import Block, Column, Event, Record
from trimtab.core.findings import Severity, Symptom
from trimtab.detect.state.hard_limits import ResumeAudit
from trimtab.journal.resume import facts
from trimtab.journal.resume.comparison import (
    THINGS,
    compare_states,
    describe_difference,
    encode_differences,
    is_restarted,
)
from trimtab.journal.resume.journal_past import JournalPast

SAVED = {
    facts.STEP: 100.0,
    facts.WORLD: 2.0,
    facts.LAYOUT: 7.0,
    facts.PARAM_NORM: 20.0,
    "state/exp_avg": 0.5,
    "state/exp_avg_sq": 0.01,
    facts.OPTIMIZER_STEP: 98.0,
    facts.LR: 1e-3,
    facts.LR_CHANGE: 1e-5,
    "first_lr/0": 1e-5,
    "first_lr/1": 2e-5,
    "option/weight_decay": 0.1,
    facts.LOSS_SCALE: 4096.0,
    facts.GROWTH_TRACKER: 12.0,
    facts.DATA_POSITION: 100.0,
    facts.LOADER_POSITION: 30.0,
    facts.AT_EPOCH_END: 0.0,
    "rng/torch": 11.0,
    "rng/numpy": 12.0,
}


def symptoms(found: dict[str, float], *, lr: float = 1e-3, planned: bool = False) -> list[Symptom]:
    differences = compare_states(SAVED, {**SAVED, **found}, lr=lr, is_planned=planned)
    return [difference.symptom for difference in differences]


def test_the_same_state_differs_in_nothing() -> None:
    assert symptoms({}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"step": 140.0}, [Symptom.WRONG_CHECKPOINT]),
        ({"param_norm": 20.01}, [Symptom.WRONG_CHECKPOINT]),
        ({"param_norm": 20.00001}, []),
        ({"param_norm": 21.0, "layout": 8.0}, []),  # sharded differently
        ({"param_norm": float("nan")}, [Symptom.WRONG_CHECKPOINT]),
        ({"state/exp_avg": 0.0}, [Symptom.MOMENTS_NOT_RESTORED]),
        ({"state/exp_avg": 0.0, "layout": 8.0}, [Symptom.MOMENTS_NOT_RESTORED]),
        ({"state/exp_avg_sq": 0.02}, [Symptom.MOMENTS_NOT_RESTORED]),
        ({"optimizer_step": 0.0}, [Symptom.OPTIMIZER_STEP_NOT_RESTORED]),
        ({"lr": 1.019e-3}, []),  # as where the rate is set at the top of a step
        ({"lr": 2e-5}, [Symptom.LR_RESTARTED]),
        ({"lr": 5e-4}, [Symptom.LR_CHANGED]),
        ({"option/weight_decay": 0.0}, [Symptom.OPTIONS_CHANGED]),
        ({"loss_scale": 65536.0}, [Symptom.SCALER_NOT_RESTORED]),
        ({"growth_tracker": 0.0}, [Symptom.SCALER_NOT_RESTORED]),
        ({"loader_position": 0.0}, [Symptom.DATA_RESTARTED]),
        ({"loader_position": 31.0}, [Symptom.DATA_OFF]),
        ({"data_position": 99.0}, [Symptom.DATA_OFF]),
        ({"batch_restarted": 1.0, "batch_offset": -100.0}, [Symptom.DATA_RESTARTED]),
        ({"batch_offset": -1.0}, [Symptom.DATA_OFF]),
        ({"rng/torch": 5.0}, [Symptom.RNG_NOT_RESTORED]),
        ({"rng/torch": 5.0, "loader_position": 0.0, "world": 4.0}, []),
    ],
)
def test_what_differs_is_named(changes: dict[str, float], expected: list[Symptom]) -> None:
    assert symptoms(changes, lr=changes.get("lr", 1e-3)) == expected


def test_the_most_telling_difference_comes_first() -> None:
    lost = {"state/exp_avg": 0.0, "optimizer_step": 0.0, "rng/torch": 0.0, "loss_scale": 1.0}
    assert symptoms(lost, lr=2e-5) == [
        Symptom.MOMENTS_NOT_RESTORED,
        Symptom.OPTIMIZER_STEP_NOT_RESTORED,
        Symptom.LR_RESTARTED,
        Symptom.SCALER_NOT_RESTORED,
        Symptom.RNG_NOT_RESTORED,
    ]


def test_a_planned_change_covers_rate_options_and_data_but_not_the_moments() -> None:
    changes = {"option/weight_decay": 0.0, "loader_position": 0.0, "state/exp_avg": 0.0}
    assert symptoms(changes, lr=2e-5, planned=True) == [Symptom.MOMENTS_NOT_RESTORED]


def test_only_torch_s_generator_is_an_alarm() -> None:
    for name, severity in (("rng/torch", Severity.ALARM), ("rng/numpy", Severity.WARN)):
        (difference,) = compare_states(SAVED, {**SAVED, name: 0.0}, lr=None)
        assert difference.severity is severity


def row(value: float) -> Record:
    signals = {"loss": 3.0, "resume_audit": value}
    return Record(step=100, tick=100, attempt=0, data_position=-1, signals=signals, qualities={})


def test_differences_travel_as_bits_and_become_findings_in_their_order() -> None:
    found = {**SAVED, "rng/torch": 0.0, "option/weight_decay": 0.0, "state/exp_avg": 0.0}
    differences = compare_states(SAVED, found, lr=1e-3)
    findings = ResumeAudit().update(row(encode_differences(differences)))
    assert [(f.symptom, f.severity) for f in findings] == [
        (difference.symptom, difference.severity) for difference in differences
    ]
    assert findings[0].explanation is not None
    assert findings[0].explanation.cause_id == "F06"


@pytest.mark.parametrize("value", [0.0, -1.0, 0.5, 1e300, math.nan, math.inf, -math.inf])
def test_a_signal_that_is_not_ours_is_no_finding(value: float) -> None:
    assert ResumeAudit().update(row(value)) == []


def test_a_schedule_that_starts_again_is_known_by_the_first_rates_of_the_run() -> None:
    assert is_restarted(SAVED, 2e-5)
    assert not is_restarted(SAVED, 3e-5)
    assert not is_restarted({**SAVED, facts.LR: 2e-5}, 2e-5)


@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [
        (facts.BATCH_OFFSET, -1.0, "was trained on 1 steps before"),
        (facts.BATCH_OFFSET, 2.0, "2 steps of data were skipped"),
        (facts.BATCH_RESTARTED, 1.0, "the first one of the run"),
        (facts.LOSS_SCALE, 64.0, "loss_scale is 64, saved was 4096"),
        ("rng/torch", 0.0, "the generator of torch"),
    ],
)
def test_every_difference_has_a_sentence_with_its_fix(fact: str, value: float, words: str) -> None:
    (difference,) = compare_states(SAVED, {**SAVED, fact: value}, lr=1e-3)
    assert words in describe_difference(difference)
    assert describe_difference(difference).endswith(THINGS[difference.symptom].fix)


def journal(
    batches: list[float], *, first: int = 0, events: tuple[Event, ...] = (), **columns: Any
) -> Block:
    count = len(batches)
    signals = {"fingerprint": batches, "lr": [1e-3] * count, **columns}
    return Block.from_columns(
        {name: Column.complete(np.array(values)) for name, values in signals.items()},
        step=np.arange(first, first + count),
        data_position=np.arange(first, first + count),
        events=events,
    )


NEW, AT = 1e6, facts.BATCH_OFFSET


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (50.0, {facts.BATCH_KNOWN: 1.0, AT: 0.0}),
        (51.0, {facts.BATCH_KNOWN: 1.0, AT: 1.0}),
        (49.0, {facts.BATCH_KNOWN: 1.0, AT: -1.0}),
        (0.0, {facts.BATCH_KNOWN: 1.0, AT: -50.0, facts.BATCH_RESTARTED: 1.0}),
        (NEW, {}),
    ],
)
def test_a_batch_is_located_where_the_run_went_on_after_the_save(
    batch: float, expected: dict[str, float]
) -> None:
    block = journal([float(at) for at in range(60)])
    assert JournalPast.of(block, 50).locate(50, batch) == expected


def test_the_next_epoch_and_irregular_repeats_say_nothing() -> None:
    epochs = JournalPast.of(journal([float(at % 20) for at in range(50)]), 50)
    assert epochs.locate(50, 10.0) == {}  # one epoch before
    assert epochs.locate(50, 9.0)[AT] == -1.0
    constant = JournalPast.of(journal([3.0] * 50), 50)
    assert constant.locate(50, 3.0) == {}
    irregular = JournalPast.of(journal([1.0, 2.0, 1.0, 3.0, 4.0, 5.0, 3.0]), 7)
    assert irregular.locate(7, 5.0) == {}


def test_a_wrong_attempt_at_the_same_step_is_no_witness() -> None:
    # Saved at 50; resumed there with the last batch a second time and a new rate; now rightly.
    first = journal([float(at) for at in range(50)])
    wrong = Block.from_columns(
        {
            "fingerprint": Column.complete(np.array([49.0, 50.0, 51.0])),
            "lr": Column.complete(np.full(3, 1e-5)),
        },
        step=np.arange(50, 53),
        tick=np.arange(50, 53),
        attempt=np.ones(3, dtype=np.int64),
        events=(Event(kind="resume", tick=50, step=50),),
    )
    past = JournalPast.of(Block.concat([first, wrong]), 50)
    assert past.locate(50, 50.0) == {}
    assert past.saved_at(50)[facts.LR] == 1e-3


def test_records_stand_in_for_a_state_that_was_not_saved() -> None:
    counts = np.full(50, np.nan)
    counts[[20, 40]] = 21.0, 39.0
    block = journal([float(at) for at in range(50)], loss_scale=[512.0] * 50)
    column = Column(counts, np.isfinite(counts))
    block = Block.from_columns(
        {**block.columns, "adam_step": column}, step=block.step, data_position=block.data_position
    )
    saved = JournalPast.of(block, 50).saved_at(50)
    assert saved[facts.OPTIMIZER_STEP] == 39.0
    assert saved[facts.MAX_OPTIMIZER_STEP] == 48.0
    assert saved[facts.LOSS_SCALE] == 512.0
    assert saved[facts.DATA_POSITION] == 50.0
    assert (
        compare_states(saved, {facts.OPTIMIZER_STEP: 47.0, facts.LOSS_SCALE: 1024.0}, lr=1e-3) == []
    )
    lost = compare_states(saved, {facts.OPTIMIZER_STEP: 0.0, facts.LOSS_SCALE: 65536.0}, lr=1e-3)
    assert [difference.symptom for difference in lost] == [
        Symptom.OPTIMIZER_STEP_NOT_RESTORED,
        Symptom.SCALER_NOT_RESTORED,
    ]


@pytest.mark.parametrize("state", [None, "text", {"lr": "high", "step": float("nan")}])
def test_a_damaged_event_is_no_saved_state(state: object) -> None:
    event = Event(kind=facts.STATE_SAVED, tick=50, step=50, facts={"state": state})
    block = journal([float(at) for at in range(50)], events=(event,))
    assert JournalPast.of(block, 50).saved_at(50)[facts.LR] == 1e-3
