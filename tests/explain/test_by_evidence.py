"""Trimtab's rules name the cause that the evidence speaks for, and show why."""

import dataclasses

import numpy as np
import pytest
from tests.kit.synthetic import (
    Array,
    add_spike,
    block_of,
    diagnosis_of,
    explained,
    falling_loss,
    troubled_run,
)

from trimtab.core.block import Block, Event, Record
from trimtab.core.causes import Cause, Standing
from trimtab.core.detector import Detector
from trimtab.core.events import EXPERIMENT, NOT_UNDONE, UNDO
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.run import RunFacts
from trimtab.core.signals import Quality
from trimtab.core.text import digits
from trimtab.explain.causes.by_evidence import would_decide
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import observation
from trimtab.explain.evidence.observation import SignalView, view_signal
from trimtab.judge import Judge
from trimtab.report.wording import short_cause

LENGTH, AT = 600, 300


def noisy(level: float, share: float, seed: int = 0) -> Array:
    return level * (1 + share * np.random.default_rng(seed).normal(size=LENGTH))


def first(run: Block, facts: RunFacts | None = None) -> Diagnosis:
    return explained(run, facts)[0]


def spiked(**signals: Array) -> Block:
    loss = falling_loss(LENGTH)
    loss[AT : AT + 4] += (3.0, 1.0, 0.6, 0.4)
    norm = noisy(0.5, 0.05)
    norm[AT] = 1.0
    return block_of({"loss": loss, "grad_norm": norm, **signals})


def test_a_spike_of_rare_tokens_is_told_from_a_hard_batch_by_the_tokens() -> None:
    usual = {"token_rarity": noisy(5.3, 0.01, 1), "unique_token_share": noisy(0.5, 0.02, 2)}
    assert first(spiked(**usual)).cause is Cause.HARD_BATCH
    usual["token_rarity"][AT] = 11.0
    assert first(spiked(**usual)).cause is Cause.RARE_TOKENS


def test_without_the_tokens_both_are_named_with_the_signal_that_would_decide() -> None:
    diagnosis = first(spiked())
    assert diagnosis.ranking is not None
    alike = {candidate.cause for candidate in diagnosis.ranking.alike}
    assert Cause.HARD_BATCH in alike
    assert "would decide" in diagnosis.root_cause or len(alike) == 1


@pytest.mark.parametrize(
    ("symptom", "cause"),
    [
        (Symptom.LR_JUMP, Cause.LR_DISCONTINUITY),
        (Symptom.LR_RISING, Cause.WRONG_SCHEDULE),
        (Symptom.FROZEN, Cause.PARAMETERS_NOT_UPDATING),
        (Symptom.STALL, Cause.LOADER_STALL),
        (Symptom.SLOW, Cause.SLOW_RANK),
        (Symptom.WENT_BACK, Cause.WRONG_RESUME),
        (Symptom.OVERFLOWS, Cause.FP16_OVERFLOW),
    ],
)
def test_a_finding_of_a_detector_is_evidence_where_nothing_else_is_recorded(
    symptom: Symptom, cause: Cause
) -> None:
    assert diagnosis_of(symptom).cause is cause


@pytest.mark.parametrize("symptom", [Symptom.STALL, Symptom.SLOW])
def test_slow_steps_alone_name_no_cause_in_the_data(symptom: Symptom) -> None:
    steps = noisy(0.5, 0.05)
    steps[AT:] *= 3
    share = noisy(0.5, 0.02, 2)
    share[AT + 8 :] *= 0.8
    rarity = noisy(5.3, 0.01, 1)
    rarity[AT + 8 :] += 0.5
    signals = {"loss": falling_loss(LENGTH), "step_seconds": steps}
    run = block_of({**signals, "unique_token_share": share, "token_rarity": rarity})
    alarm = Finding(
        detector="throughput",
        symptom=symptom,
        severity=Severity.ALARM,
        signal="step_seconds",
        step=int(run.step[AT]),
        tick=int(run.tick[AT]),
        value=1.5,
    )
    judge = Judge(detectors=[Says(alarm)])
    judge.update(run[: AT + 8])
    (incident,) = judge.incidents
    diagnosis = judge.explain(incident, run, RunFacts(ranks=1))
    assert set(incident.symptoms) == {symptom}
    named = {item.cause for item in diagnosis.hypotheses if item.cause is not None}
    assert named <= {Cause.LOADER_STALL, Cause.SLOW_RANK}


class Says(Detector):
    """One finding, at its record."""

    name = "says"

    def __init__(self, finding: Finding) -> None:
        self._finding = finding

    def update(self, record: Record) -> list[Finding]:
        return [self._finding] if record.tick == self._finding.tick else []


def test_what_happened_is_said_where_no_cause_is_known() -> None:
    assert "no longer recorded" in diagnosis_of(Symptom.MISSING_LOSS).root_cause
    left = diagnosis_of(Symptom.REFERENCE_GAP)
    assert left.cause is None
    assert "If both saw the same batches, the data is not the cause." in left.root_cause


def test_the_hypotheses_are_the_ranking_with_weights() -> None:
    diagnosis = first(spiked(lr=np.where(np.arange(LENGTH) < AT - 1, 1e-3, 2e-2)))
    assert diagnosis.cause is Cause.LR_DISCONTINUITY
    named = diagnosis.hypotheses[0]
    assert named.cause is diagnosis.cause
    assert named.standing is Standing.SUPPORTED
    shares = [item.probability for item in diagnosis.hypotheses if item.cause]
    assert shares == sorted(shares, key=lambda share: -(share or 0))
    weights = [item.weight or 0 for item in named.evidence]
    assert weights == sorted(weights, key=lambda weight: -abs(weight))
    assert any(item.signal == "lr" and item.favors for item in named.evidence)


def test_a_nan_that_stays_is_first_of_all_a_destructive_update() -> None:
    diagnosis = explained(troubled_run())[-1]
    assert "a destructive update wrote NaN" in diagnosis.hypotheses[0].statement
    assert diagnosis.cause is None  # the dtype would tell
    assert {h.cause for h in diagnosis.hypotheses} >= {Cause.LOGIC_NAN, Cause.FP16_OVERFLOW}
    assert "dtype" in diagnosis.root_cause


@pytest.mark.parametrize(
    ("name", "value", "standing"),
    [
        ("param_norm/mlp", np.nan, Standing.SUPPORTED),
        ("param_norm/mlp", 28.3, Standing.RULED_OUT),
        ("weight_hash/mlp", 7.0, Standing.RULED_OUT),
        ("discarded", 1.0, Standing.RULED_OUT),
    ],
)
def test_what_the_weights_hold_tells_whether_an_update_destroyed_them(
    name: str, value: float, standing: Standing
) -> None:
    loss, column = falling_loss(LENGTH), np.full(LENGTH, 0.0 if name == "discarded" else 7.0)
    loss[AT:], column[AT:] = np.nan, value
    diagnosis = first(block_of({"loss": loss, name: column}), RunFacts(dtype="fp32"))
    (told,) = (h for h in diagnosis.hypotheses if "destructive update" in h.statement)
    assert told.standing is standing
    # It follows from the cause, where that is named, and comes after it.
    place = diagnosis.hypotheses.index(told)
    assert (place == 1) is (standing is Standing.SUPPORTED and diagnosis.cause is not None)
    assert ("param_norm/mlp not finite at step" in told.statement) is (value != value)


@pytest.mark.parametrize(
    ("dtype", "cause"), [("fp32", Cause.LOGIC_NAN), ("fp16", Cause.FP16_OVERFLOW)]
)
def test_the_dtype_tells_an_overflow_from_a_logic_nan(dtype: str, cause: Cause) -> None:
    loss, norm = falling_loss(LENGTH), noisy(0.5, 0.05)
    loss[AT:] = np.nan
    norm[AT:] = np.nan
    signals = {"loss": loss, "grad_norm": norm}
    if dtype == "fp16":
        signals["loss_scale"] = np.where(np.arange(LENGTH) < AT, 65536.0, 1.0)
    assert first(block_of(signals), RunFacts(dtype=dtype)).cause is cause


def test_beside_a_scaler_fp32_weights_do_not_exclude_an_overflow() -> None:
    loss, scale = falling_loss(LENGTH), np.full(LENGTH, 65536.0)
    loss[AT:] = np.nan
    seen = first(block_of({"loss": loss, "loss_scale": scale}), RunFacts(dtype="fp32"))
    assert seen.ranking is not None
    assert not seen.ranking.results["nan_in_range"].is_answer
    assert "fp32" not in seen.root_cause
    assert Cause.FP16_OVERFLOW in {item.cause for item in seen.ranking.candidates}


@pytest.mark.parametrize(("given", "is_outside"), [(2.05, True), ("NaN", False)])
def test_a_finite_batch_loss_beside_a_nan_says_that_it_arises_outside_of_it(
    given: object, is_outside: bool
) -> None:
    loss = falling_loss(LENGTH)
    loss[AT] = np.nan
    answer = {"name": "again", "answer": "same", "sentence": "the same bits", "loss": given}
    made = Event(kind=EXPERIMENT, tick=AT + 2, step=AT + 3, facts=answer)
    run = dataclasses.replace(block_of({"loss": loss}), events=(made,))
    seen = first(run, RunFacts(dtype="fp32"))
    assert seen.cause is Cause.LOGIC_NAN
    assert ("`batch_loss` of the same batch is 2.05" in seen.root_cause) is is_outside
    assert "does so by itself" not in seen.remedy  # it does already
    plain = first(block_of({"loss": loss}), RunFacts(dtype="fp32"))
    assert "does so by itself" in plain.remedy


def test_an_undo_that_cures_a_run_of_nan_says_that_the_state_was_corrupted() -> None:
    loss = falling_loss(LENGTH)
    loss[AT : AT + 6] = np.nan
    facts = {"why": "no finite gradient", "how_sure": "likely", "to_step": 200, "updates_lost": 97}
    undone = Event(kind=UNDO, tick=AT + 5, step=AT + 7, facts=facts)
    run = dataclasses.replace(block_of({"loss": loss}), events=(undone,))
    seen = first(run, RunFacts(dtype="fp32"))
    assert seen.cause is None
    assert seen.root_cause.startswith(
        f"About 90 %: a weight or a moment was corrupted at about step {AT + 1}"
    )
    loss[AT + 40] = np.nan  # it comes back
    again = first(dataclasses.replace(block_of({"loss": loss}), events=(undone,)))
    assert "corrupted" not in again.root_cause


def test_a_setting_that_changed_as_the_loss_did_is_the_cause_in_every_view() -> None:
    loss = falling_loss(LENGTH)
    loss[AT:] += 0.5
    length = np.where(np.arange(LENGTH) < AT, 1024.0, 4096.0)
    seen = first(block_of({"loss": loss[: AT + 40], "seq_len": length[: AT + 40]}))
    change = f"seq_len went from 1024 to 4096 at step {AT + 1}"
    assert seen.root_cause == f"Probably the change: {change}."
    assert seen.hypotheses[0].statement == f"the change: {change}"
    assert short_cause(seen) == f"probably the change: {change}"
    assert seen.action.instruction.startswith("Nothing to do if the change at step")
    assert seen.remedy.startswith("None if the change was meant")
    loss[AT] += 1.0
    after = np.where(np.arange(LENGTH) < AT + 3, 0.5, 0.0)  # an accuracy: a consequence
    assert "probe" not in first(block_of({"loss": loss, "probe": after})).root_cause
    other = np.roll(length, 100)
    assert "seq_len" not in first(block_of({"loss": loss, "seq_len": other})).root_cause


@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_one_infinite_gradient_with_finite_losses_is_an_overflow_before_a_bit_flip(
    dtype: str | None,
) -> None:
    norm = noisy(0.5, 0.05)
    norm[AT] = np.inf
    seen = first(block_of({"loss": falling_loss(LENGTH), "grad_norm": norm}), RunFacts(dtype=dtype))
    assert seen.ranking is not None
    shares = {item.cause: item.probability for item in seen.ranking.candidates}
    assert (Cause.BIT_FLIP in shares) is (dtype == "fp32")
    if dtype is None:
        assert seen.ranking.first.cause is Cause.FP16_OVERFLOW
        assert "the scaler skipped" in seen.hypotheses[0].statement


def test_a_nan_claims_no_more_than_where_it_was_seen() -> None:
    loss, norm = falling_loss(LENGTH), noisy(40.0, 1e-4)
    loss[AT:] = np.nan
    norm[AT:] = np.nan
    seen = first(block_of({"loss": loss, "param_norm": norm}), RunFacts(dtype="fp32"))
    assert seen.root_cause == (
        f"The loss became NaN at step {AT + 1} in fp32: the batch, a weight or an operation in the "
        "forward pass; which one is not recorded."
    )
    norm[AT - 3 :] = np.nan  # before the loss
    known = first(block_of({"loss": loss, "param_norm": norm}), RunFacts(dtype="fp32"))
    assert known.cause is None
    assert known.ranking is not None
    assert Cause.LOGIC_NAN not in {item.cause for item in known.ranking.candidates}


def test_a_replay_is_proposed_only_where_the_batch_may_be_the_cause() -> None:
    ranking = first(spiked()).ranking
    assert ranking is not None
    for cause, proposed in ((Cause.HARD_BATCH, True), (Cause.LR_TOO_HIGH, False)):
        pair = tuple(
            dataclasses.replace(ranking.first, cause=one, probability=0.4)
            for one in (cause, Cause.STALE_SECOND_MOMENT)
        )
        undecided = dataclasses.replace(ranking, candidates=pair, decides=None)
        assert would_decide(undecided).startswith("replaying the step") is proposed


def test_the_quality_of_values_that_are_not_raw_is_shown() -> None:
    rate = np.where(np.arange(LENGTH) < AT - 1, 1e-3, 2e-2)
    raw = block_of({"loss": add_spike(falling_loss(LENGTH), AT, height=5.0), "lr": rate})
    smoothed = dataclasses.replace(raw, qualities={"lr": Quality.SMOOTHED})
    for run, is_raw in ((raw, True), (smoothed, False)):
        diagnosis = first(run)
        assert diagnosis.ranking is not None
        text = diagnosis.ranking.results["lr_jumped"].observation
        assert ("recorded as smoothed" in text) is not is_raw


def test_a_jump_of_the_rate_has_the_step_of_the_rate_though_the_loss_follows_a_step_later() -> None:
    rate = np.where(np.arange(LENGTH) < AT - 1, 1e-3, 1.4e-3)
    run = block_of({"loss": add_spike(falling_loss(LENGTH), AT, height=5.0), "lr": rate})
    diagnosis = first(run)
    assert diagnosis.incident.onset.step == int(run.step[AT])
    said = next(one for one in diagnosis.hypotheses if one.cause is Cause.LR_DISCONTINUITY)
    assert f"jumped at step {run.step[AT - 1]}: 0.001 -> 0.0014" in said.statement


@pytest.mark.parametrize("at", [20, 60, 100, 300])
def test_a_rate_that_is_multiplied_is_the_cause_however_early_it_happens(at: int) -> None:
    time = np.arange(at + 40)
    loss = 1 + 3 * np.exp(-time / 40) + np.random.default_rng(at).normal(scale=0.05, size=len(time))
    loss[at + 1 :] *= 2.0 ** np.arange(1, len(time) - at)
    norm = 0.5 * loss
    run = block_of({"loss": loss, "grad_norm": norm, "lr": np.where(time < at, 1e-2, 1.0)})
    diagnosis = first(run)
    assert diagnosis.incident.onset.step == int(run.step[at])
    assert diagnosis.cause is Cause.LR_DISCONTINUITY
    assert f"jumped at step {run.step[at]}: 0.01 -> 1, 100 times" in diagnosis.root_cause


@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_rate_that_jumps_and_comes_back_is_named_by_its_jump(records: int) -> None:
    """On a schedule that falls, the way back is the larger change."""
    time = np.arange(400)
    rate = 1e-3 * (1 - time / 420)
    before = rate[120]
    rate[120 : 120 + records] *= 100
    loss = 0.5 + 3 * np.exp(-time / 200) + np.random.default_rng(2).normal(scale=0.02, size=400)
    loss[121:] += 1.5 * np.exp(-(time[121:] - 121) / 150)
    run = block_of({"loss": loss, "lr": rate})
    diagnosis = first(run)
    assert diagnosis.cause is Cause.LR_DISCONTINUITY
    assert f"jumped at step {run.step[120]}: " in diagnosis.root_cause
    assert diagnosis.remedy.startswith(
        f"Find what raised the rate to {digits(100 * before)} at step"
    )


@pytest.mark.parametrize("kind", [UNDO, NOT_UNDONE])
def test_a_bit_that_was_seen_to_flip_names_the_cause(kind: str) -> None:
    run = spiked()
    assert first(run).cause is not Cause.BIT_FLIP
    facts = {"why": "one bit of lm_head flipped in memory", "is_hardware": True}
    flip = Event(kind=kind, tick=int(run.tick[AT + 4]), step=int(run.step[AT + 4]), facts=facts)
    proven = first(dataclasses.replace(run, events=(flip,)))
    assert proven.cause is Cause.BIT_FLIP
    further = {"why": "x", "how_sure": "certain", "tensor": "2.weight", "is_too_far": True}
    moved = first(dataclasses.replace(run, events=(dataclasses.replace(flip, facts=further),)))
    assert moved.root_cause.startswith("Something other than the optimizer changed 2.weight before")
    assert "ne bit of lm_head flipped in memory" in proven.root_cause
    assert (proven.hypotheses[0].probability or 0) > 0.95
    other = dataclasses.replace(flip, facts={"why": "lm_head not finite"})
    assert first(dataclasses.replace(run, events=(other,))).cause is first(run).cause


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_loss_that_comes_back_is_no_factor_in_the_code(comes_back: bool) -> None:
    loss = falling_loss(2 * LENGTH)
    loss[AT : AT + 60 if comes_back else None] *= 2.0
    norm = np.concatenate((noisy(0.5, 0.05), noisy(0.5, 0.05, 1)))
    norm[AT : AT + 60 if comes_back else None] *= 2.0
    diagnosis = first(block_of({"loss": loss, "grad_norm": norm}))
    named = {hypothesis.cause for hypothesis in diagnosis.hypotheses}
    assert (Cause.LOSS_REDUCTION_BUG in named) is not comes_back


@pytest.mark.parametrize("records", [20, 60, 300])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_is_on_its_way_back_is_no_factor_in_the_code(seed: int, records: int) -> None:
    noise = np.random.default_rng(seed).normal(size=(2, 700))
    after = np.clip(np.arange(700) - 400, 0, None)
    is_after = np.arange(700) >= 400
    loss = 2.3 - 0.0002 * np.arange(700) + 0.02 * noise[0]
    loss += np.where(is_after, 4 * np.exp(-after / 150), 0)
    norm = 0.35 * (1 + np.where(is_after, 10 * np.exp(-after / 8), 0)) * (1 + 0.04 * noise[1])
    diagnosis = first(block_of({"loss": loss, "grad_norm": norm})[: 400 + records])
    assert Cause.LOSS_REDUCTION_BUG not in {item.cause for item in diagnosis.hypotheses}


def test_a_gradient_that_is_0_is_no_multiple_of_another() -> None:
    loss = falling_loss(LENGTH)
    loss[AT:] *= 3.0
    for before, after in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        norm = np.where(np.arange(LENGTH) < AT, before, after)
        named = {
            item.cause for item in first(block_of({"loss": loss, "grad_norm": norm})).hypotheses
        }
        assert named.isdisjoint({Cause.LOSS_REDUCTION_BUG, Cause.RARE_TOKENS})


def test_a_factor_is_found_where_odd_gradients_before_it_date_the_onset() -> None:
    loss, norm = falling_loss(LENGTH), noisy(0.5, 0.05)
    loss[AT:] *= 5.0
    norm[AT:] *= 5.0
    norm[[AT - 10, AT - 7]] = 2.0
    diagnosis = first(block_of({"loss": loss, "grad_norm": norm}))
    assert diagnosis.incident.onset.tick < AT - 1
    assert diagnosis.cause is Cause.LOSS_REDUCTION_BUG
    assert (diagnosis.hypotheses[0].probability or 0) <= 0.7  # curves alone


def test_every_input_of_an_incident_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    viewed: list[str] = []

    def counted(context: IncidentContext, signal: str) -> SignalView | None:
        viewed.append(signal)
        return view_signal(context, signal)

    monkeypatch.setattr(observation, "view_signal", counted)
    first(spiked())
    assert viewed.count("loss") == 1
    assert viewed.count("grad_norm") == 1
