"""What the records of a run say about an incident."""

import math

import pytest

from trimtab.core import signals
from trimtab.core.block import Record
from trimtab.core.config import RecoverConfig
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, Moment
from trimtab.decide.readings import CANARY_SHARE, canary_every
from trimtab.decide.situation import Act, Situation
from trimtab.live.recover.decide import evidence
from trimtab.live.recover.decide.canary import CONFIRM_BOUNDARIES
from trimtab.live.recover.decide.probing import PROBE_AGE
from trimtab.live.recover.decide.remedies import Remedy, RemedyHistory


def records(losses: list[float], **more: float) -> list[Record]:
    return [
        Record(step=n, tick=n, data_position=2 * n, signals={signals.LOSS: loss, **more})
        for n, loss in enumerate(losses)
    ]


USUAL = [3.0 + 0.1 * (n % 3 - 1) for n in range(64)]


@pytest.mark.parametrize(
    ("after", "is_odd", "is_known"),
    [
        ([3.1], False, True),
        ([9.0], True, False),
        ([9.0, 3.0], True, False),
        ([9.0, 3.0, 3.1], True, True),
        ([9.0, 8.0], False, True),
        ([math.nan], False, True),
    ],
)
def test_a_batch_is_odd_if_the_next_ones_are_not(
    after: list[float], is_odd: bool, is_known: bool
) -> None:
    found = evidence.oddity(records(USUAL + after), onset=64)
    assert (found.is_odd, found.is_known) == (is_odd, is_known)


def test_discarded_and_non_finite_steps_are_bad() -> None:
    run = records([3.0] * 15) + records([3.0, math.nan, 3.0], discarded=1.0)
    assert evidence.count_bad(run) == (3, 3)
    assert evidence.count_bad(run + records([3.0])) == (0, 3)


def test_the_slope_is_the_fall_per_step() -> None:
    falling = [5.0 - 0.01 * n for n in range(128)]
    assert evidence.slope(records(falling), onset=128) == pytest.approx(0.01)
    assert evidence.slope(records(falling[:20]), onset=128) is None


def test_batches_of_bad_steps_are_not_probed() -> None:
    run = records([3.0] * 10)
    run[7] = records([math.nan] * 8)[7]
    assert [r.step for r in evidence.probe_steps(run, 9, 3)] == [5, 6, 8]
    assert [r.step for r in evidence.probe_steps(run, 9, 8, not_before=4)] == [4, 5, 6, 8]


def test_the_canary_stays_within_its_share_and_its_batches_are_still_kept() -> None:
    assert canary_every(CANARY_SHARE, boundary=100) == 52
    assert canary_every(CANARY_SHARE, boundary=2000) == 183
    assert RecoverConfig().oldest_steps >= PROBE_AGE + 183 + CONFIRM_BOUNDARIES
    assert canary_every(0.0, boundary=2000) is None


def test_budgets_forget_what_is_long_past() -> None:
    history = RemedyHistory(window_steps=100)
    known = Situation(step=210, onset=200, waited=5)
    for boundary in (10, 50):
        history.add(
            Remedy(
                situation=known,
                act=Act.RESTORE_AND_SKIP,
                target=180,
                num_skipped=12,
                boundary=boundary,
                check_at=216,
            )
        )
    assert history.spent(60) == (2, 24)
    assert history.spent(120) == (1, 12)
    assert len(history.of(Situation(step=399, onset=390, waited=0))) == 2
    assert not history.of(Situation(step=999, onset=990, waited=0))
    assert history.due(216) is not None
    assert history.due(215) is None


def growing(ratio: float, *, scale: float | None = None) -> list[Record]:
    """Records in which one block's output grows from step 64 on, up to a ratio."""
    found = []
    for n, loss in enumerate(USUAL + [3.0] * 10):
        factor = 1.0 if n < 64 else 1.0 + (ratio - 1.0) * (n - 63) / 10
        values = {
            signals.LOSS: loss,
            f"{signals.ACTIVATION_RMS}blocks.0": 1.0,
            f"{signals.ACTIVATION_RMS}blocks.1": 2.0 * factor,
        }
        if scale is not None:
            values[signals.LOSS_SCALE] = 65536.0 if n < 64 else scale
        found.append(Record(step=n, tick=n, data_position=n, signals=values))
    return found


def test_the_block_whose_output_grew_most_is_named_with_the_loss_scale() -> None:
    note = evidence.precision_note(growing(1000.0, scale=2.0), onset=70)
    assert note == "output of blocks.1 grew 1000 times; loss scale 65536 -> 2"


def test_a_block_that_is_not_finite_is_named_and_an_ordinary_change_is_not() -> None:
    assert evidence.precision_note(growing(math.inf), onset=70) == "output of blocks.1 not finite"
    assert evidence.precision_note(growing(1.5), onset=70) == ""
    assert evidence.precision_note([], onset=70) == ""


def incident_with(*found: tuple[int, Symptom, Severity]) -> Incident:
    """An incident with findings at these steps; it began at the first."""
    findings = tuple(
        Finding(
            detector="test",
            symptom=symptom,
            severity=severity,
            signal="loss",
            step=step,
            tick=step,
            value=1.0,
        )
        for step, symptom, severity in found
    )
    at = Moment(tick=found[0][0], step=found[0][0], loss=None)
    return Incident(
        number=1,
        onset=at,
        peak=at,
        end=None,
        last=at,
        baseline_mean=None,
        baseline_deviation=None,
        records=1,
        incident_class=None,
        findings=findings,
        num_findings=len(findings),
    )


def test_a_gradient_spike_long_before_does_not_date_what_came_later() -> None:
    alarm = Severity.ALARM
    again = incident_with(
        (86, Symptom.GRADIENT_SPIKE, alarm),
        (188, Symptom.NORM_DRIFT, alarm),
        (189, Symptom.UPDATE_SPIKE, alarm),
    )
    assert evidence.onset_of(again) == 188
    assert [finding.step for finding in evidence.alarms(again)] == [188, 189]
    slow = incident_with(
        (86, Symptom.LOSS_SPIKE, Severity.WARN),
        *((step, Symptom.LOSS_SPIKE, alarm) for step in (100, 160, 220)),
    )
    assert evidence.onset_of(slow) == 86
    assert len(evidence.alarms(slow)) == 3


def test_odd_tokens_at_the_onset_explain_what_was_found_there() -> None:
    alarm = (219, Symptom.ACTIVATION_JUMP, Severity.ALARM)
    odd = (219, Symptom.ODD_TOKENS, Severity.WARN)
    assert evidence.has_odd_tokens(incident_with(alarm, odd))
    assert not evidence.has_odd_tokens(incident_with(alarm))
    later = (230, Symptom.ODD_TOKENS, Severity.WARN)
    assert not evidence.has_odd_tokens(incident_with(alarm, later))


def test_a_multiple_of_the_loss_of_all_known_batches_is_noted() -> None:
    trained = [4.0, 4.5, 3.9, 4.2]
    assert "8.0 times" in evidence.multiple_note(trained, [7 * loss for loss in trained])
    assert not evidence.multiple_note(trained, [-0.2, -0.3, -0.1, -0.2])  # healthy
    assert not evidence.multiple_note(trained, [2.0, 9.0, 4.0, 3.0])  # broken weights
    assert not evidence.multiple_note(trained, [math.nan] * 4)
    assert not evidence.multiple_note([], [])


def test_the_loss_of_a_discarded_step_says_nothing_about_the_weights() -> None:
    bad = Record(step=65, tick=65, data_position=130, signals={"loss": math.nan, "discarded": 1.0})
    fine = Record(step=66, tick=66, data_position=132, signals={"loss": 3.0})
    assert evidence.loss_excess([*records(USUAL), bad], onset=63) is None
    found = evidence.loss_excess([*records(USUAL), bad, fine], onset=63)
    assert found is not None
    assert abs(found[0]) < 0.2
