"""A batch that was made smaller on purpose is noisier; that is no alarm."""

import json
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.synthetic import block_of

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.diagnose.known_changes import ADAPT_RECORDS, KnownChanges

CHANGE = 100


def finding(row: int, value: float, symptom: Symptom = Symptom.GRADIENT_SPIKE) -> Finding:
    return Finding(
        detector="test",
        symptom=symptom,
        severity=Severity.ALARM,
        signal="grad_norm",
        step=row,
        tick=row,
        value=value,
        expected=1.0,
        limit=2.0,
    )


def run(before: float = 4096.0, after: float = 1024.0, rows: int = 400) -> Block:
    tokens = np.where(np.arange(rows) < CHANGE, before, after)
    return block_of({"tokens": tokens}, first_step=0)


def tempered(block: Block, *findings: Finding) -> list[Finding]:
    return KnownChanges().temper(block, findings)


def test_noise_that_goes_with_the_root_of_the_batch_is_a_warning_that_says_why() -> None:
    warned, alarmed = tempered(run(), finding(CHANGE, 5.9), finding(CHANGE + 1, 6.1))
    assert warned.severity is Severity.WARN
    assert warned.facts["noise_growth"] == 2.0
    assert alarmed.severity is Severity.ALARM  # more than the batch explains, but told beside it
    assert alarmed.facts["noise_growth"] == 2.0
    loss, high = tempered(
        run(),
        finding(CHANGE, 2.9, Symptom.LOSS_SPIKE),
        finding(CHANGE + 1, 3.1, Symptom.LOSS_SPIKE),
    )
    assert (loss.severity, high.severity) == (Severity.WARN, Severity.ALARM)


def test_only_for_as_long_as_baselines_take_to_adapt() -> None:
    last = CHANGE + ADAPT_RECORDS
    early, late, before = tempered(
        run(), finding(last - 1, 5.0), finding(last, 5.0), finding(CHANGE - 1, 5.0)
    )
    assert early.severity is Severity.WARN
    assert late.severity is before.severity is Severity.ALARM


def test_a_larger_batch_or_one_that_always_differs_explains_nothing() -> None:
    assert tempered(run(1024.0, 4096.0), finding(CHANGE, 5.0))[0].severity is Severity.ALARM
    ragged = np.random.default_rng(0).uniform(500, 5000, 400)
    block = block_of({"tokens": ragged}, first_step=0)
    alarms = [finding(row, 3.5) for row in range(400)]
    assert all(item.severity is Severity.ALARM for item in tempered(block, *alarms))


def test_what_no_noise_explains_stays_an_alarm() -> None:
    for symptom in (Symptom.NONFINITE_LOSS, Symptom.LEVEL_SHIFT, Symptom.STATE_LOST):
        assert tempered(run(), finding(CHANGE, 1.5, symptom))[0].severity is Severity.ALARM


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1024.0, 4096.0, 4100.0, np.nan, 0.0]), min_size=1, max_size=12),
    st.sets(st.integers(0, 400), max_size=6),
    st.integers(0, 400),
)
def test_any_cut_and_any_save_lower_the_same(
    sizes: list[float], cuts: set[int], saved_at: int
) -> None:
    block = block_of({"tokens": np.repeat(sizes, 33)}, first_step=0)
    findings = [finding(row, 5.0) for row in range(len(block))]
    whole = tempered(block, *findings)
    edges = [0, *sorted(cut for cut in cuts if cut < len(block)), len(block)]
    pieces = KnownChanges()
    told = []
    for first, last in pairwise(edges):
        if first >= saved_at:
            state = json.loads(json.dumps(pieces.state_dict()))
            pieces = KnownChanges()
            pieces.load_state_dict(state)
        told += pieces.temper(block[first:last], findings[first:last])
    assert told == whole
