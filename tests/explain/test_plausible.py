"""What a run is and records bounds which causes are possible, and how sure one can be."""

import dataclasses

import numpy as np
import pytest
from tests.kit.synthetic import Array, block_of, explained, falling_loss

from trimtab.core.block import Block, Event
from trimtab.core.causes import Cause, Evidence, Standing
from trimtab.core.config import Config, DetectConfig
from trimtab.core.events import EXPERIMENT
from trimtab.core.run import RunFacts
from trimtab.explain.causes.plausible import base_rates
from trimtab.explain.causes.ranking import SUPPORTED
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.judge import Judge
from trimtab.readers.facts import find_facts

LENGTH, AT = 600, 300


def spiked(facts: RunFacts | None = None, **signals: np.ndarray) -> Diagnosis:
    loss, norm = falling_loss(LENGTH), np.full(LENGTH, 0.5)
    loss[AT : AT + 10] += 3.0
    norm[AT] = 40.0
    run = block_of({"loss": loss, "grad_norm": norm, **signals})
    # A policy's loss has no spikes: here the user says that it is a measure all the same.
    judge = Judge(Config(detect=DetectConfig(objective="measure")))
    judge.update(run)
    judge.finish()
    return judge.explain(judge.incidents[0], run, facts)


def evidence_of(diagnosis: Diagnosis, at: int = 0) -> tuple[Evidence, ...]:
    return diagnosis.hypotheses[at].evidence


def possible(diagnosis: Diagnosis) -> set[Cause | None]:
    assert diagnosis.ranking is not None
    return {candidate.cause for candidate in diagnosis.ranking.candidates}


def test_curves_alone_name_no_cause() -> None:
    diagnosis = spiked()
    assert diagnosis.cause is None
    assert "Not known; possibly long-tail or degenerate tokens" in diagnosis.root_cause
    # What is likely has its remedy, and the gradient that speaks for it is said.
    assert "If it was long-tail or degenerate tokens: look at these rows" in diagnosis.remedy
    assert "record(loss=loss, batch=batch)" in diagnosis.remedy
    assert any("gradient norm 40, usually 0.5" in e.observation for e in evidence_of(diagnosis))
    assert all((h.probability or 0) < SUPPORTED for h in diagnosis.hypotheses if h.cause)


@pytest.mark.parametrize(
    ("facts", "signals", "impossible"),
    [
        (RunFacts(), (), {Cause.LR_DISCONTINUITY, Cause.WRONG_SCHEDULE}),
        (RunFacts(dtype="bf16"), (), {Cause.FP16_OVERFLOW}),
        (RunFacts(optimizer="SGD"), (), {Cause.STALE_SECOND_MOMENT, Cause.EPSILON_REGIME}),
        (RunFacts(ranks=1), (), {Cause.REPLICAS_OUT_OF_SYNC, Cause.BAD_DEVICE}),
        (RunFacts(), ("eval/wer",), {Cause.RARE_TOKENS, Cause.ATTENTION_LOGIT_GROWTH}),
        (RunFacts(), ("reward",), {Cause.RARE_TOKENS}),
        (RunFacts(), ("param_norm/mlp",), {Cause.RARE_TOKENS, Cause.ATTENTION_LOGIT_GROWTH}),
    ],
)
def test_what_a_run_cannot_have_is_not_a_hypothesis(
    facts: RunFacts, signals: tuple[str, ...], impossible: set[Cause]
) -> None:
    columns = {name: np.linspace(0.9, 0.1, LENGTH) for name in signals}
    assert possible(spiked(facts, **columns)).isdisjoint(impossible)


def test_a_trainer_of_language_models_may_have_tokens_and_attention() -> None:
    assert Cause.ATTENTION_LOGIT_GROWTH in possible(spiked(RunFacts(trainer="Megatron-LM")))


def test_the_data_file_knows_every_cause_and_only_known_observations() -> None:
    rates = base_rates()
    ids = {cause.id for cause in Cause}
    assert set(rates["decides"]) == ids
    for names in (*rates["decides"].values(), rates["curves"], rates["exact"]):
        assert set(names) <= set(ALL_OBSERVATIONS)
    assert set(rates["by construction"]["shares"]) <= set(ALL_OBSERVATIONS)
    for table in (*rates["shapes"].values(), *rates["kinds"].values(), rates["all"]):
        assert set(table) <= {*ids, "outside"}


def share_of(cause: Cause, diagnosis: Diagnosis) -> float:
    assert diagnosis.ranking is not None
    found = (c.probability for c in diagnosis.ranking.candidates if c.cause is cause)
    return next(found, 0.0)


def with_nan() -> dict[str, Array]:
    loss = falling_loss(LENGTH)
    loss[AT] = np.nan
    return {"loss": loss, "grad_norm": np.full(LENGTH, 0.5)}


def after_experiment(name: str, answer: str, facts: RunFacts | None = None) -> Diagnosis:
    run = block_of(with_nan())
    shown = {"name": name, "answer": answer, "sentence": "as it was found"}
    event = Event(kind=EXPERIMENT, tick=AT + 1, step=int(run.step[AT]) + 1, facts=shown)
    return explained(dataclasses.replace(run, events=(event,)), facts)[0]


def test_a_batch_that_is_not_finite_itself_is_no_fault_of_the_model() -> None:
    bf16 = RunFacts(dtype="bf16")
    assert explained(block_of(with_nan()), bf16)[0].cause is Cause.LOGIC_NAN
    found = after_experiment("first_nonfinite", "batch", bf16)
    assert found.cause is None
    assert "itself holds NaN" in found.root_cause
    assert share_of(Cause.LOGIC_NAN, found) < 0.05


@pytest.mark.parametrize(
    ("name", "answer", "cause"),
    [
        ("fp32", "precision", Cause.FP16_OVERFLOW),
        ("first_nonfinite", "module", Cause.LOGIC_NAN),
        ("first_nonfinite", "loss", Cause.LOGIC_NAN),
    ],
)
def test_an_experiment_names_the_cause(name: str, answer: str, cause: Cause) -> None:
    assert explained(block_of(with_nan()))[0].cause is not cause
    found = after_experiment(name, answer)
    assert found.cause is cause
    assert any("as it was found" in item.observation for item in evidence_of(found))
    assert "as it was found" in found.root_cause
    assert "not recorded" not in found.root_cause
    assert "finiteness check" not in found.remedy


def test_a_nan_is_not_explained_by_what_keeps_numbers_finite() -> None:
    tokens = np.where(np.arange(LENGTH) < AT, 1e6, 2e6)
    run = block_of({**with_nan(), "tokens": tokens})
    finite = {Cause.HARD_BATCH, Cause.DUPLICATE_BATCH, Cause.BATCH_SIZE_CHANGE}
    assert possible(explained(run)[0]).isdisjoint(finite)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("name", ["param_norm", "param_norm/mlp"])
def test_a_weight_norm_that_doubles_or_halves_is_weight_decay(direction: int, name: str) -> None:
    noise = np.random.default_rng(1).normal(size=(2, 1400))
    after = np.clip(np.arange(1400) - 800, 0, None)
    signals = {
        "loss": falling_loss(1400) + 0.0025 * after,
        "grad_norm": 0.6 * np.exp(0.12 * noise[0]),
        "lr": np.linspace(3e-4, 1e-4, 1400),
        name: 30 * np.exp(2e-4 * noise[1]) * 2.0 ** (direction * after / 150),
    }
    found = explained(block_of(signals))[0]
    assert found.cause is Cause.WEIGHT_DECAY
    assert Cause.LR_DISCONTINUITY in ruled_out(found)
    signals[name] = np.where(after > 0, 60.0, 30.0)  # at once: other weights were loaded
    assert explained(block_of(signals))[0].cause is not Cause.WEIGHT_DECAY


def ruled_out(diagnosis: Diagnosis) -> set[object]:
    return {h.cause for h in diagnosis.hypotheses if h.standing is Standing.RULED_OUT}


def test_what_is_ruled_out_is_said_with_the_number() -> None:
    (found,) = explained(block_of({**with_nan(), "lr": np.full(LENGTH, 1e-3)}))
    out = next(h for h in found.hypotheses if h.cause is Cause.LR_DISCONTINUITY)
    assert out.standing is Standing.RULED_OUT
    assert "in one record: 1 times" in out.evidence[0].observation
    assert Cause.FP16_OVERFLOW not in ruled_out(found)  # the dtype is not recorded


def test_a_batch_that_is_served_again_at_once_is_named() -> None:
    prints = np.random.default_rng(5).integers(1, 2**31, LENGTH).astype(float)
    prints[AT : AT + 3] = prints[AT - 1]
    loss = falling_loss(LENGTH)
    loss[AT + 40] = np.nan
    plain = explained(block_of({"loss": falling_loss(LENGTH), "fingerprint": prints}))
    assert [item.cause for item in plain] == [Cause.DUPLICATE_BATCH]
    later = explained(block_of({"loss": loss, "fingerprint": prints}), RunFacts(dtype="fp32"))
    assert Cause.LOGIC_NAN in {item.cause for item in later}


@pytest.mark.parametrize(
    ("settings", "cause"),
    [({"beta2": 0.999}, Cause.STALE_SECOND_MOMENT), ({"epsilon": 1e-5}, Cause.EPSILON_REGIME)],
)
def test_settings_move_the_ranking(settings: dict[str, float], cause: Cause) -> None:
    run = spiked_run()
    changed, plain = (explained(run, RunFacts(settings=s))[0] for s in (settings, {}))
    assert share_of(cause, changed) > share_of(cause, plain)


def spiked_run(*spikes: int) -> Block:
    loss = falling_loss(LENGTH)
    for at in spikes or (AT,):
        loss[at : at + 10] += 3.0 - 0.5 * (at % 3)
    return block_of({"loss": loss, "grad_norm": np.full(LENGTH, 0.5)})


def test_spikes_of_one_run_have_one_cause() -> None:
    found = explained(spiked_run(150, 220, 301, 371, 450, 520))
    assert len(found) > 3
    assert len({tuple(h.cause for h in d.hypotheses)[:2] for d in found}) == 1


def test_a_schedule_that_begins_again_is_a_restart_and_no_jump() -> None:
    step = np.arange(LENGTH)
    since = np.where(step < AT, step, step - AT)
    rate = 1e-3 * np.minimum(since / 20.0, 1 - since / LENGTH * 2 + 0.033)
    loss = falling_loss(LENGTH)
    loss[AT:] += 4.0 * np.exp(-since[AT:] / 60.0)
    (found, *_) = explained(block_of({"loss": loss, "lr": np.clip(rate, 0, None)}))
    assert found.ranking is not None
    assert found.ranking.results["resumes"].is_yes
    assert found.ranking.results["lr_jumped"].is_no
    assert Cause.WRONG_RESUME in possible(found)


def test_a_loss_that_only_climbs_has_not_come_back() -> None:
    step = np.arange(1600)
    noise = np.random.default_rng(0).normal(size=(2, 1600))
    loss = 2.25 + 5.5 * np.exp(-step / 60.0) + 0.035 * noise[0]
    loss += np.where(step > 750, 0.0015 * (step - 750), 0)
    norm = 0.6 * np.exp(0.12 * noise[1] + np.clip(step - 700, 0, 600) / 250.0)
    found = explained(block_of({"loss": loss, "grad_norm": norm}))
    assert any(share_of(Cause.LR_TOO_HIGH, item) > 0.15 for item in found)


def test_a_run_states_its_own_settings() -> None:
    facts = find_facts("--adam-beta2 0.95 --clip-grad 1.0 --adam-eps 1e-8 lr_warmup_iters ... 0")
    assert facts.settings == {"beta2": 0.95, "clip": 1.0, "epsilon": 1e-8, "warmup": 0.0}
    assert find_facts("AdamW(betas=(0.9, 0.999), eps=1e-8)").settings == {"beta2": 0.999}
    assert find_facts("beta2=0.9 beta2=0.95").settings == {}


def test_an_incident_that_is_open_is_judged_as_it_stands() -> None:
    loss = falling_loss(LENGTH)[: AT + 12]
    loss[AT:] += np.linspace(0.5, 4.0, 12)
    found = explained(block_of({"loss": loss}))[-1]
    assert found.ranking is not None
    assert found.ranking.first.cause is Cause.LR_TOO_HIGH
