"""How a run is cut into blocks, and where the judge is saved and loaded, changes nothing."""

import dataclasses
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.cases import examples
from tests.kit.synthetic import troubled_run
from trimtab.core.block import Block, Column, Event
from trimtab.core.causes import Cause, Standing
from trimtab.core.config import Config, DetectConfig, RuleSetName
from trimtab.core.errors import ConfigError
from trimtab.core.events import NOT_APPLIED, SETTING_CHANGED, UNDO, UNDO_OUTCOME
from trimtab.core.findings import Symptom
from trimtab.detect.textbook import TextbookThresholds
from trimtab.judge import Judge
from trimtab.rulesets import RULE_SETS, TRIMTAB, RuleSet, textbook_rules

# Short windows, so that a run of a few hundred records goes through every state many times.
TEXTBOOK = textbook_rules(
    TextbookThresholds(
        window=10, recovery_records=6, rise_records=5, norm_steps=8, reopen_records=3
    )
)

values = st.one_of(
    st.floats(0.5, 3.0),
    st.sampled_from([np.nan, np.inf, -np.inf, 9.0, 50.0, 1e300, -1e300]),
)
cells = st.one_of(st.none(), values, values, values)


EVENTS = [
    Event(kind=NOT_APPLIED, tick=0, step=0),
    Event(kind=UNDO, tick=0, step=0, facts={"updates_lost": 3}),
    Event(kind=UNDO_OUTCOME, tick=0, step=0, facts={"helped": False}),
    Event(kind="resume", tick=0, step=0),
    Event(kind=SETTING_CHANGED, tick=0, step=0, facts={"name": "lr", "before": 1, "after": 2}),
]


def column(entries: list[float | None]) -> Column:
    return Column(
        np.array([np.nan if entry is None else entry for entry in entries], dtype=np.float64),
        np.array([entry is not None for entry in entries], dtype=np.bool_),
    )


@st.composite
def runs(draw: st.DrawFn) -> Block:
    length = draw(st.integers(1, 120))
    names = ["loss", "grad_norm", "param_norm", "param_norm/mlp", "loss_scale", "lr"]
    names += ["eval_loss", "reward", "step_seconds"]
    columns = {
        name: column(draw(st.lists(cells, min_size=length, max_size=length)))
        for name in draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    }
    if draw(st.booleans()):  # a stretch that only rises
        columns["loss"] = Column.complete(np.linspace(1, 2, length))
    if draw(st.booleans()):
        columns["discarded"] = column(
            draw(st.lists(st.sampled_from([None, 0.0, 1.0]), min_size=length, max_size=length))
        )
    strides = draw(st.lists(st.integers(-3, 5), min_size=length, max_size=length))
    step = np.cumsum(strides)
    events = draw(st.lists(st.tuples(st.integers(0, length - 1), st.sampled_from(EVENTS))))
    return Block.from_columns(
        columns,
        step=step,
        events=tuple(
            dataclasses.replace(event, tick=tick, step=int(step[tick]))
            for tick, event in sorted(events, key=lambda pair: pair[0])
        ),
    )


def verdicts(judge: Judge, pieces: list[Block]) -> str:
    judgements = [judge.update(piece) for piece in pieces] + [judge.finish()]
    findings = [finding for judgement in judgements for finding in judgement.findings]
    changes = [change for judgement in judgements for change in judgement.changes]
    return text([*findings, *changes, *judge.incidents])


def text(parts: Sequence[Any]) -> str:
    """All that dataclasses hold: a NaN is not equal to itself, and a repr leaves things out."""
    return "\n".join(str(dataclasses.asdict(part)) for part in parts)


def faulty(draw: np.random.Generator, values: np.ndarray, *, is_loss: bool) -> np.ndarray:
    """The signal with spikes, moved levels and drifts added."""
    length = len(values)
    for _ in range(draw.integers(0, 5)):
        at, span = int(draw.integers(0, length)), int(draw.choice([1, 2, 5, 40, 300]))
        size = draw.choice([0.15, 0.4, 3.0, 50.0])
        shape = np.linspace(0, 1, span) if draw.random() < 0.3 else np.ones(span)
        part = slice(at, at + span)
        shape = size * shape[: len(values[part])]
        values[part] = values[part] + shape if is_loss else values[part] * (1 + 5 * shape)
    for _ in range(draw.integers(0, 4)):
        values[draw.integers(0, length)] = draw.choice([np.nan, np.inf, -np.inf, 1e300, 0.0, -1.0])
    return values


@st.composite
def long_runs(draw: st.DrawFn) -> Block:
    """Runs long enough for every window to fill, with every kind of trouble."""
    seed = draw(st.integers(0, 10**9))
    random = np.random.default_rng(seed)
    length = int(random.choice([40, 300, 700, 1600]))
    at = np.arange(length)
    base = 2.0 + 2.0 * np.exp(-at / 300)
    values = {
        "loss": faulty(random, base + random.standard_t(4, length) * 0.03, is_loss=True),
        "grad_norm": faulty(random, np.exp(random.normal(-1, 0.1, length)), is_loss=False),
        "update_norm": faulty(random, np.exp(random.normal(-3, 0.1, length)), is_loss=False),
        "update_per_lr": faulty(random, np.exp(random.normal(3, 0.1, length)), is_loss=False),
    }
    columns = {}
    for name, signal in values.items():
        share = random.choice([1.0, 1.0, 0.7, 0.1])
        if random.random() < 0.8 or name == "loss":
            columns[name] = Column(signal, random.random(length) < share)
    strides = np.full(length, random.choice([1, 1, 5, 100]))
    strides[random.integers(0, length) :] = random.choice([1, 5, 100])
    strides[random.integers(0, length, 2)] = random.choice([1, -200, 1000])
    return Block.from_columns(columns, step=np.cumsum(strides))


@settings(max_examples=examples(300), deadline=None)
@given(runs(), st.data())
def test_any_cut_and_any_save_gives_the_same_findings_and_incidents(
    run: Block, data: st.DataObject
) -> None:
    check_cuts(TEXTBOOK, run, data)


@settings(max_examples=examples(60), deadline=None)
@given(st.one_of(runs(), long_runs(), long_runs(), long_runs()), st.data())
def test_the_same_holds_for_trimtabs_rules(run: Block, data: st.DataObject) -> None:
    check_cuts(TRIMTAB, run, data)


def check_cuts(rules: RuleSet, run: Block, data: st.DataObject) -> None:
    # Drawn before anything is judged: whatever a judge does, the same choices give the same test.
    edges = sorted(data.draw(st.sets(st.integers(0, len(run)), max_size=8)))
    saved_at = data.draw(st.integers(0, len(run)))
    whole = verdicts(Judge(rules=rules), [run])

    bounds = [0, *edges, len(run)]
    pieces = [run[a:b] for a, b in pairwise(bounds)]
    assert verdicts(Judge(rules=rules), pieces) == whole
    assert verdicts(Judge(rules=rules), list(run.cut(1))) == whole

    first = Judge(rules=rules)
    head = first.update(run[:saved_at])
    second = Judge(rules=rules)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    tail = second.update(run[saved_at:])
    end = second.finish()
    joined = [
        *head.findings,
        *tail.findings,
        *head.changes,
        *tail.changes,
        *end.changes,
        *second.incidents,
    ]
    assert text(joined) == whole


@settings(max_examples=examples(150), deadline=None)
@given(runs())
def test_every_incident_of_any_run_can_be_explained(run: Block) -> None:
    check_explanations(TEXTBOOK, run)


@settings(max_examples=examples(40), deadline=None)
@given(st.one_of(runs(), long_runs()))
def test_every_incident_of_trimtabs_rules_can_be_explained(run: Block) -> None:
    check_explanations(TRIMTAB, run)


def check_explanations(rules: RuleSet, run: Block) -> None:
    judge = Judge(rules=rules)
    judge.update(run)
    judge.finish()
    for incident in judge.incidents:
        diagnosis = judge.explain(incident, run)
        assert (diagnosis.walk is None) is not (diagnosis.ranking is None)
        if diagnosis.walk is not None:
            assert diagnosis.walk.answers[-1].goes_to == "end"
        assert diagnosis.action.instruction
        if diagnosis.cause is not None:
            (place,) = (
                at for at, item in enumerate(diagnosis.hypotheses) if item.cause == diagnosis.cause
            )
            named = diagnosis.hypotheses[place]
            assert named.standing is not Standing.RULED_OUT
            is_first = all(item.cause is None for item in diagnosis.hypotheses[:place])
            assert is_first or named.standing is Standing.OPEN


@pytest.mark.parametrize("config", [Config(), Config(rule_set=RuleSetName.TEXTBOOK)])
def test_an_open_incident_is_reported_as_it_now_stands(config: Config) -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 420)
    loss = 2 + noise + np.concatenate((np.zeros(400), 5 + np.arange(20)))  # still climbing
    judge = Judge(config)
    run = Block.from_columns({"loss": Column.complete(loss)}, step=np.arange(420))
    judge.update(run[:411])
    before = judge.incidents[-1]
    assert not judge.update(run[411:412]).changes
    now = judge.incidents[-1]
    assert now.number == before.number
    assert before.peak.loss == loss[410]
    assert now.peak.loss == loss[411]


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("lost", ["onset", "all of the incident", "all after the onset", "all"])
def test_an_incident_whose_records_were_lost_can_still_be_explained(rules: str, lost: str) -> None:
    run = troubled_run()
    judge = Judge(rules=rules)
    judge.update(run)
    judge.finish()
    assert judge.incidents
    for incident in judge.incidents:
        first, last = incident.onset.tick, incident.last.tick
        pieces = {
            "onset": (run[:first], run[first + 1 :]),
            "all of the incident": (run[:first], run[last + 1 :]),
            "all after the onset": (run[:first],),
            "all": (),
        }[lost]
        report = judge.explain(incident, Block.concat(pieces))
        assert report.symptoms.lr is None  # recorded at each step, but lost at the onset
        assert report.action.instruction
        if Symptom.NONFINITE_LOSS in incident.symptoms:
            # Without the dtype, evidence cannot tell a logic NaN from an overflow.
            expected = None if rules == "trimtab" else Cause.LOGIC_NAN
            assert report.cause in (expected, Cause.FP16_OVERFLOW)
            possible = {hypothesis.cause for hypothesis in report.hypotheses}
            assert possible & {Cause.LOGIC_NAN, Cause.FP16_OVERFLOW}


def test_a_rising_loss_is_explained_without_the_records_of_the_rise() -> None:
    loss = np.concatenate([np.full(50, 2.0), 2.1 + 0.0001 * np.arange(260)])
    run = Block.from_columns({"loss": Column.complete(loss)}, step=np.arange(310))
    judge = Judge(rules="textbook")
    judge.update(run)
    incident = next(i for i in judge.incidents if "loss rising steadily" in i.symptoms)
    judge.explain(incident, run[incident.onset.tick :])


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (Config(detect=DetectConfig(threshold_scale=3.0)), "threshold_scale"),
        (Config(rule_set=RuleSetName.TEXTBOOK), "rules"),
    ],
)
def test_a_state_saved_with_other_settings_is_refused(config: Config, name: str) -> None:
    state = Judge().state_dict()
    with pytest.raises(ConfigError, match=name):
        Judge(config).load_state_dict(state)


def test_the_same_records_twice_are_refused() -> None:
    run = troubled_run()
    judge = Judge()
    judge.update(run[:100])
    with pytest.raises(ValueError, match="all ticks up to 99"):
        judge.update(run[50:150])
    judge.update(run[100:150])
    resumed = Judge()
    resumed.load_state_dict(judge.state_dict())
    with pytest.raises(ValueError, match="each record once"):
        resumed.update(run[149:])
    resumed.update(run[:0])
    resumed.update(run[150:])
