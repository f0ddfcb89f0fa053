"""Observations are pure functions of the signals that they name."""

import dataclasses

import numpy as np
import pytest
from tests.kit.synthetic import Array, block_of, falling_loss, incident_of

from trimtab.core.block import Column, Event
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import IncidentClass, Moment
from trimtab.core.run import RunFacts
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence import ALL_OBSERVATIONS, OBSERVATIONS
from trimtab.explain.evidence.checks import ObservedOutcome
from trimtab.explain.measures import measure

LENGTH, AT = 400, 300
YES, NO, MISSING, TOO_FEW = (
    ObservedOutcome.YES,
    ObservedOutcome.NO,
    ObservedOutcome.NOT_RECORDED,
    ObservedOutcome.TOO_FEW,
)


def context(
    signals: dict[str, Array], facts: RunFacts | None = None, *, resumed: bool = False
) -> IncidentContext:
    block = block_of({"loss": falling_loss(LENGTH), **signals})
    if resumed:
        event = Event(kind="resume", tick=AT, step=AT + 1)
        block = dataclasses.replace(block, events=(event,))
    moment = Moment(step=AT + 1, tick=AT, loss=2.0)
    incident = incident_of(
        moment,
        last=Moment(step=LENGTH, tick=LENGTH - 1, loss=2.0),
        records=LENGTH - AT,
        incident_class=IncidentClass.SILENT,
    )
    return IncidentContext.of(incident, block, facts or RunFacts())


def steady(level: float, share: float = 0.01) -> Array:
    return level * (1 + share * np.random.default_rng(3).normal(size=LENGTH))


def from_onset(values: Array, factor: float, records: int | None = None) -> Array:
    changed = values.copy()
    changed[AT : None if records is None else AT + records] *= factor
    return changed


def growing(level: float, rate: float) -> Array:
    """Grows by a fraction per record from the onset on."""
    return level * np.exp(rate * np.maximum(np.arange(LENGTH) - AT, 0))


def one(signal: str, planted: Array, healthy: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    return {signal: planted}, {signal: healthy}


FIRST_EPOCH = np.arange(float(LENGTH))
IS_BEFORE = np.arange(LENGTH) < AT

PLANTED: dict[str, tuple[dict[str, Array], dict[str, Array]]] = {
    "loss_burst": one("loss", from_onset(steady(2), 1.5, 1), from_onset(steady(2), 1.5)),
    "loss_level_up": one("loss", from_onset(steady(2), 1.2), from_onset(steady(2), 1.2, 1)),
    "loss_fell": one("loss", from_onset(steady(2), 0.5), steady(2)),
    "loss_creeps_up": one("loss", steady(2) * growing(1, 0.01), from_onset(steady(2), 2)),
    "gradient_burst": one("grad_norm", from_onset(steady(1), 8, 2), from_onset(steady(1), 8)),
    "gradient_multiplied": one("grad_norm", from_onset(steady(1), 8), from_onset(steady(1), 8, 2)),
    "gradient_huge": one("grad_norm", from_onset(steady(1), 500, 1), steady(1)),
    "gradient_grows": one("grad_norm", growing(1, 0.02), steady(1)),
    "gradient_fell": one("grad_norm", from_onset(steady(1), 0.7), steady(1)),
    "lr_jumped": one("lr", from_onset(steady(1e-3, 0), 3), growing(1e-3, -0.001)),
    "lr_turned_up": one(
        "lr", 1e-3 + 1e-6 * np.abs(np.arange(LENGTH) - AT), np.linspace(1e-3, 1e-4, LENGTH)
    ),
    "v_fell": one("adam_v_norm", from_onset(steady(1), 0.1), steady(1)),
    "v_rose": one("adam_v_norm", from_onset(steady(1), 5), steady(1)),
    "m_fell": one("adam_m_norm", from_onset(steady(1), 0.1), steady(1)),
    "v_fell_in_part": (
        {"adam_v_norm/a": from_onset(steady(1), 0.1), "adam_v_norm/b": steady(1)},
        {f"adam_v_norm/{name}": from_onset(steady(1), 0.1) for name in "ab"},
    ),
    "count_back": one("adam_step", np.where(IS_BEFORE, FIRST_EPOCH, 1.0), FIRST_EPOCH),
    "updates_grew": one("update_per_lr", from_onset(steady(1), 4), steady(1)),
    "updates_shrank": one("update_per_lr", from_onset(steady(1), 0.3), steady(1)),
    "gradient_over_v": one("grad_to_v_rms", from_onset(steady(1), 5), steady(1)),
    "gradient_under_v": one("grad_to_v_rms", from_onset(steady(1), 0.2), steady(1)),
    "group_frozen": (
        {"update_norm/a": from_onset(steady(1), 0), "update_norm/b": steady(1)},
        {"update_norm/a": steady(1), "update_norm/b": steady(1)},
    ),
    "one_direction": one("grad_momentum_cosine", from_onset(steady(0.4), 2), steady(0.4)),
    "weights_jumped": one("param_norm/a", from_onset(steady(9, 1e-5), 1.2), growing(9, 0.01)),
    "weights_grow": one("param_norm/a", growing(9, 0.01), from_onset(steady(9, 1e-5), 1.2)),
    "attention_grows": (
        {"param_norm/attention": growing(9, 0.01)},
        {"param_norm/attention": steady(9, 1e-5), "param_norm/mlp": growing(9, 0.01)},
    ),
    "gains_grow": (
        {"param_norm/norm": growing(9, 0.01)},
        {"param_norm/norm": steady(9, 1e-5), "param_norm/mlp": growing(9, 0.01)},
    ),
    "weights_shrink": one("param_norm/a", growing(9, -0.01), growing(9, 0.01)),
    "activations_jumped": one("activation_rms/0", from_onset(steady(1), 0.5), growing(1, 0.01)),
    "activations_grow": one("activation_rms/0", growing(1, 0.02), steady(1)),
    "activations_shrink": one("activation_rms/0", growing(1, -0.02), steady(1)),
    "attention_logits_grow": one("max_attention_logit", growing(8, 0.03), steady(8)),
    "log_z_grows": one("max_log_z", growing(6, 0.01), steady(6)),
    "batch_repeated": one("fingerprint", np.minimum(FIRST_EPOCH, AT), FIRST_EPOCH),
    "batches_come_again": one(
        "fingerprint", np.where(IS_BEFORE, FIRST_EPOCH, FIRST_EPOCH - 200), FIRST_EPOCH
    ),
    "rare_tokens": one("token_rarity", from_onset(steady(5), 2, 1), steady(5)),
    "few_distinct_tokens": one("unique_token_share", from_onset(steady(0.5), 0.1, 1), steady(0.5)),
    "text_changed": (
        {"token_rarity": from_onset(steady(5), 1.1), "unique_token_share": steady(0.5)},
        {"token_rarity": from_onset(steady(5), 1.1, 1), "unique_token_share": steady(0.5)},
    ),
    "tokens_changed": one("tokens", from_onset(steady(256, 0), 0.5), steady(256, 0)),
}
"""By observation: signals in which it is made, and others in which it is not."""


@pytest.mark.parametrize("id", PLANTED)
def test_what_is_planted_is_seen_and_without_its_signal_nothing_is_said(id: str) -> None:
    planted, healthy = PLANTED[id]
    assert OBSERVATIONS[id](context(planted)).outcome is YES
    assert OBSERVATIONS[id](context(healthy)).outcome is NO
    if "loss" not in planted:
        expected = TOO_FEW if id == "batch_repeated" else MISSING  # batches are known by place
        assert OBSERVATIONS[id](context({})).outcome is expected


def test_a_damaged_learning_rate_is_a_jump_of_finite_size() -> None:
    for damaged in (1e300, -1e300, 0.0):
        seen = OBSERVATIONS["lr_jumped"](context({"lr": from_onset(steady(1.0), damaged)}))
        assert seen.outcome is YES
        assert "inf" not in seen.observation
    tiny_then_huge = np.where(np.arange(LENGTH) < AT, -1e300, 1e300)
    assert OBSERVATIONS["lr_jumped"](context({"lr": tiny_then_huge})).outcome is YES


def test_what_follows_a_nan_is_not_an_observation_of_its_own() -> None:
    norm = steady(1)
    norm[AT:] = np.nan
    seen = {id: look(context({"grad_norm": norm})).outcome for id, look in OBSERVATIONS.items()}
    assert seen["gradient_huge"] is TOO_FEW
    assert seen["gradient_nonfinite_first"] is YES


def test_weights_that_are_nonfinite_before_the_loss_are_seen() -> None:
    norm = from_onset(steady(9), np.inf)
    assert OBSERVATIONS["state_nonfinite_first"](context({"param_norm": norm})).outcome is YES


def test_token_counts_that_begin_anew_at_a_resume_are_not_rare_tokens() -> None:
    signals = {"token_rarity": from_onset(steady(5), 2, 1)}
    assert OBSERVATIONS["rare_tokens"](context(signals, resumed=True)).outcome is TOO_FEW
    assert OBSERVATIONS["resumes"](context(signals, resumed=True)).outcome is YES


def test_bursts_that_come_and_go_are_told_from_one_that_stays() -> None:
    norm = steady(1)
    norm[AT : AT + 60 : 10] *= 50
    look = OBSERVATIONS["gradient_intermittent"]
    assert look(context({"grad_norm": norm})).outcome is YES
    assert look(context({"grad_norm": from_onset(steady(1), 50)})).outcome is NO


@pytest.mark.parametrize(("ranks", "outcome"), [(None, MISSING), (1, NO), (8, YES)])
def test_the_number_of_ranks_is_a_fact_of_the_run(
    ranks: int | None, outcome: ObservedOutcome
) -> None:
    facts = RunFacts.from_manifest({"world": ranks})
    assert OBSERVATIONS["several_ranks"](context({}, facts)).outcome is outcome


def short(values: Array, records: int, *findings: Finding) -> IncidentContext:
    """The run ends, or was rolled back, some records after the onset."""
    made = context({"param_norm/norm": values})
    incident = dataclasses.replace(made.incident, findings=findings)
    return dataclasses.replace(made, block=made.block[: AT + records], incident=incident)


def test_a_growth_is_seen_in_three_records_if_they_move_faster_than_any_before() -> None:
    look = OBSERVATIONS["gains_grow"]
    healthy = 9 * np.exp(np.cumsum(1e-4 * np.random.default_rng(4).random(LENGTH)))
    fast = healthy * growing(1, 0.008)
    assert look(short(fast, 3)).outcome is YES
    assert look(short(fast, 2)).outcome is TOO_FEW
    assert look(short(healthy, 3)).outcome is TOO_FEW
    assert look(context({"param_norm/norm": healthy})).outcome is NO


def test_a_trend_that_began_before_the_onset_is_known_from_its_finding() -> None:
    norm = 9 * np.exp(0.008 * np.arange(LENGTH))
    assert OBSERVATIONS["gains_grow"](context({"param_norm/norm": norm})).outcome is NO
    drift = Finding(
        detector="norm-trend",
        symptom=Symptom.NORM_DRIFT,
        severity=Severity.ALARM,
        signal="param_norm/norm",
        step=AT + 1,
        tick=AT,
        value=9.0,
        facts={"growth": 2.0, "least_before": 0.1, "most_before": 0.4},
    )
    seen = {
        id: OBSERVATIONS[id](short(norm, 30, drift)).outcome
        for id in ("gains_grow", "weights_grow", "attention_grows")
    }
    assert seen == {"gains_grow": YES, "weights_grow": YES, "attention_grows": NO}
    shrinks = dataclasses.replace(drift, facts={**drift.facts, "growth": -2.0})
    assert OBSERVATIONS["gains_grow"](short(norm, 30, shrinks)).outcome is NO


def test_a_new_attempt_is_a_resume() -> None:
    made = context({})
    attempt = (np.arange(LENGTH) >= AT - 5).astype(np.int64)
    restarted = dataclasses.replace(made.block, attempt=attempt)
    look = OBSERVATIONS["resumes"]
    assert look(made).outcome is NO
    assert look(dataclasses.replace(made, block=restarted)).outcome is YES


@pytest.mark.parametrize(("factor", "resumes", "gap"), [(1.0, NO, NO), (1.3, YES, YES)])
def test_a_repeated_step_is_compared_with_itself(
    factor: float, resumes: ObservedOutcome, gap: ObservedOutcome
) -> None:
    made = context({"loss": steady(4) * np.linspace(1, 0.5, LENGTH)})
    back = np.arange(LENGTH) >= AT - 10
    loss = made.block.column("loss").values.copy()
    loss[AT - 10 :] = factor * loss[AT - 60 : LENGTH - 50]
    block = dataclasses.replace(
        made.block,
        columns={"loss": Column.complete(loss)},
        step=made.block.step - 50 * back,
        attempt=back.astype(np.int64),
    )
    again = dataclasses.replace(made, block=block)
    assert OBSERVATIONS["resumes"](again).outcome is resumes
    shown = OBSERVATIONS["resume_gap"](context({}, resumed=True)).observation
    assert "at the same steps" not in shown
    started = dataclasses.replace(again.incident, onset=Moment(step=AT - 59, tick=AT - 10, loss=2))
    seen = OBSERVATIONS["resume_gap"](dataclasses.replace(again, incident=started))
    assert (seen.outcome, "at the same steps before" in seen.observation) == (gap, True)


def test_the_ids_and_statements_of_observations_are_their_own() -> None:
    statements = [item.statement for item in OBSERVATIONS.values()]
    assert len(set(statements)) == len(statements)
    assert all(item.source for item in OBSERVATIONS.values())


@pytest.mark.parametrize(
    ("size", "rate", "outcome"),
    [
        (700.0, 1.0, ObservedOutcome.YES),
        (700.0, 100.0, ObservedOutcome.NO),  # the learning rate explains it
        (100.0, 1.0, ObservedOutcome.NO),  # a stale second moment can do it
    ],
)
def test_a_jump_beyond_all_updates_comes_from_outside(
    size: float, rate: float, outcome: ObservedOutcome
) -> None:
    norm, update, lr = np.full(LENGTH, 12.0), np.full(LENGTH, 0.2), np.full(LENGTH, 1e-3)
    norm[AT:] += size
    lr[AT:] *= rate
    update[AT:] = np.nan  # the step was discarded
    signals = {"param_norm/mlp": norm, "update_norm/mlp": update, "lr": lr}
    look = ALL_OBSERVATIONS["moved_from_outside"]
    assert look(context(signals)).outcome is outcome
    del signals["update_norm/mlp"]
    assert not look(context(signals)).is_answer


def test_a_constant_rate_that_rises_has_turned_up() -> None:
    def turned(lr: Array) -> ObservedOutcome:
        return OBSERVATIONS["lr_turned_up"](context({"lr": lr})).outcome

    assert turned(growing(1e-3, 0.01)) is YES
    assert turned(np.full(LENGTH, 1e-3)) is NO
    assert turned(np.linspace(1e-6, 1e-3, LENGTH)) is NO  # still warming up


def test_symptoms_are_of_the_batch_that_was_found_not_of_a_warning_before_it() -> None:
    rarity = steady(5.0)
    rarity[AT + 5] = 11.0
    found = Finding(
        tick=AT + 5,
        step=AT + 6,
        detector="state-jump",
        symptom=Symptom.ODD_TOKENS,
        severity=Severity.ALARM,
        signal="token_rarity",
        value=11.0,
    )
    made = context({"token_rarity": rarity})
    incident = dataclasses.replace(made.incident, findings=(found,))
    assert measure(dataclasses.replace(made, incident=incident)).token_rarity == 11.0
    assert measure(made).token_rarity == rarity[AT]


@pytest.mark.parametrize("period", [1, 2, 7, 100, 200])
def test_losses_that_come_again_are_seen_whatever_their_period(period: int) -> None:
    look = ALL_OBSERVATIONS["loss_constant"]
    # Few different values, so that many shorter periods hold at first sight.
    losses = np.resize(np.random.default_rng(period).integers(1, 3, period) * 1.0, LENGTH)
    losses[period - 1 :: period] = 3.0
    assert look(context({"loss": losses})).outcome is YES
    losses[AT] = 4.0
    assert look(context({"loss": losses})).outcome is NO


@pytest.mark.timeout(120)
def test_what_is_observed_of_a_long_incident_does_not_take_its_square() -> None:
    rows, at = 1_000_000, 5000
    losses = np.round(falling_loss(rows), 2)
    finding = Finding(
        detector="level-shift",
        symptom=Symptom.LEVEL_SHIFT,
        severity=Severity.ALARM,
        signal="loss",
        step=at + 1,
        tick=at,
        value=2.0,
    )
    incident = incident_of(
        Moment(step=at + 1, tick=at, loss=2.0),
        last=Moment(step=rows, tick=rows - 1, loss=2.0),
        records=rows - at,
        incident_class=IncidentClass.SILENT,
        findings=(finding,),
    )
    signals = dict.fromkeys(("loss", "grad_norm", "lr", "param_norm", "adam_v_norm"), losses)
    long = IncidentContext.of(incident, block_of(signals), RunFacts())
    for look in ALL_OBSERVATIONS.values():
        look(long)
