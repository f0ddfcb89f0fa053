"""The signals of reinforcement learning: what is found, and what is not."""

import dataclasses

import numpy as np
import pytest
from tests.detect.feeding import block, findings
from tests.kit.synthetic import explained

from trimtab.core.block import Block, Column
from trimtab.core.causes import Cause
from trimtab.core.findings import Severity, Symptom
from trimtab.detect.run.policy import NEAR_ZERO, PolicySignals, arrival

LENGTH, AT = 160, 90


def healthy(seed: int = 0) -> dict[str, np.ndarray]:
    """A policy that gets better: reward and KL rise, entropy falls."""
    noise = np.random.default_rng(seed).normal(0, 1, (8, LENGTH))
    way = np.linspace(0, 1, LENGTH)
    return {
        "loss": 0.02 * noise[0],
        "reward": 0.4 + 0.4 * way + 0.04 * noise[1],
        "kl": 0.001 + 0.1 * way + 0.003 * np.abs(noise[2]),
        "entropy": 1.2 - 0.5 * way + 0.03 * noise[3],
        "response_length": 200 + 60 * way + 8 * noise[4],
        "truncated_share": np.abs(0.01 * noise[5]),
        "logprob_gap": 0.01 + 0.001 * np.abs(noise[6]),
        "no_signal_share": np.clip(0.2 + 0.3 * way + 0.05 * noise[7], 0, 1),
    }


def changed(name: str, change: str) -> Block:
    columns, since = healthy(), np.arange(LENGTH) >= AT
    values = columns[name]
    columns[name] = (
        np.where(since, 0.0 * values, values) if change == "dies" else values * (1 + 9 * since)
    )
    return block(LENGTH, **columns)


def test_a_policy_that_gets_better_is_no_finding() -> None:
    for seed in range(4):
        found = findings(PolicySignals, block(LENGTH, **healthy(seed)))
        assert [item for item in found if item.severity is Severity.ALARM] == []


@pytest.mark.parametrize(
    ("name", "change", "symptom"),
    [
        ("reward", "dies", Symptom.REWARD_FELL),
        ("entropy", "dies", Symptom.ENTROPY_FELL),
        ("entropy", "explodes", Symptom.ENTROPY_ROSE),
        ("kl", "explodes", Symptom.KL_JUMP),
        ("logprob_gap", "explodes", Symptom.ROLLOUT_GAP),
    ],
)
def test_a_signal_that_leaves_its_past_is_found_soon(
    name: str, change: str, symptom: Symptom
) -> None:
    found = findings(PolicySignals, changed(name, change))
    first = next(item for item in found if item.severity is Severity.ALARM)
    assert first.symptom == symptom
    assert AT <= first.step <= AT + 8


def test_without_a_policy_nothing_is_judged() -> None:
    columns = {"kl": healthy()["kl"] * np.where(np.arange(LENGTH) < AT, 1, 100)}
    assert findings(PolicySignals, block(LENGTH, **columns)) == []


def test_a_verifier_that_fails_is_named_and_a_calm_loss_hides_nothing() -> None:
    columns = healthy()
    columns["reward"][AT:], columns["no_signal_share"][AT:] = 0.0, 1.0
    (found,) = explained(block(LENGTH, **columns))
    assert found.cause is Cause.REWARD_BUG
    assert not found.incident.facts.is_measure


def test_a_collapse_of_the_entropy_says_when_it_arrives() -> None:
    columns, steps = healthy(), np.arange(LENGTH)
    columns["entropy"] = columns["entropy"] * np.exp(-0.05 * np.maximum(steps - AT, 0))
    found = findings(PolicySignals, block(LENGTH, **columns))
    (first,) = (one for one in found if one.symptom == Symptom.ENTROPY_FELL)
    there = int(np.argmax(columns["entropy"] < NEAR_ZERO))
    assert first.step < there - 10
    assert first.facts["arrival_low"] <= there <= first.facts["arrival_high"]
    assert "reaches 0.05 about step 1" in first.forecast


def test_the_range_of_the_arrival_holds_in_nine_of_ten() -> None:
    dice = np.random.default_rng(4)
    hits = 0
    for _ in range(200):
        steps = np.arange(12)
        logs = np.log(1.0) - 0.08 * steps + dice.normal(0, 0.08, 12)
        found = arrival([(int(s), float(np.exp(y))) for s, y in zip(steps, logs, strict=True)])
        hits += found["arrival_low"] <= -np.log(NEAR_ZERO) / 0.08 <= found["arrival_high"]
    assert 160 <= hits <= 196
    assert arrival([(step, 1.0) for step in range(12)]) == {}
    assert arrival([(step, 0.01 - 1e-4 * step) for step in range(12)]) == {}


@pytest.mark.parametrize(
    "equal", [{"reward_std": 0.0}, {"critic/advantages/max": 0.0, "critic/advantages/min": 0.0}]
)
def test_a_run_whose_rewards_are_all_equal_from_the_start_has_no_signal(
    equal: dict[str, float],
) -> None:
    found = findings(PolicySignals, block(20, reward=0.0, **equal))
    assert [(one.symptom, one.severity) for one in found] == [(Symptom.NO_SIGNAL, Severity.ALARM)]
    assert found[0].step < 12


def rewards(*values: float, every: int = 5) -> Block:
    return block(len(values), step=np.arange(len(values)) * every, reward=np.array(values))


def alarms(run: Block) -> list[tuple[str, int]]:
    return [(one.symptom, one.tick) for one in findings(PolicySignals, run)]


@pytest.mark.parametrize(
    "values",
    [
        (0.9, 0.75, 0.95, 0.175, 0.025, 0.0, 0.025),
        (0.85, 0.975, 0.85, 0.725, 1.0, 0.95, 0.875, 0.225, 0.0, 0.0, 0.0),
        (0.825, 0.95, 1.0, 0.775, 0.525, 0.0, 0.0, 0.05),
        (0.6, 0.55, 0.0, 0.0, 0.0),
    ],
)
def test_a_reward_that_is_gone_is_seen_in_the_first_records(values: tuple[float, ...]) -> None:
    assert alarms(rewards(*values, *[0.0] * 20)) == [(Symptom.REWARD_FELL, len(values) - 1)]


def test_a_reward_that_is_rare_noisy_or_unbounded_is_not_gone() -> None:
    draw = np.random.default_rng(0)
    for _ in range(12):
        rare = draw.binomial(8, 0.15, 27) / 8
        noisy = draw.binomial(4, 0.5, 27) / 4
        unbounded = 3 * draw.random(27) * (np.arange(27) < 10)
        for values in (rare, noisy, unbounded):
            assert alarms(rewards(*values)) == []


def test_a_policy_without_prompts_has_no_cause_in_them() -> None:
    reward = np.where(np.arange(LENGTH) < AT, 0.7, 0.05) + 0.01 * np.cos(np.arange(LENGTH))
    named = {}
    for name in ("value_loss", "response_length"):
        signals = {"reward": reward, "loss": np.cos(np.arange(LENGTH)), name: np.full(LENGTH, 5.0)}
        (found, *_) = explained(block(LENGTH, **signals))
        assert found.ranking is not None
        named[name] = {one.cause.id for one in found.ranking.candidates if one.cause}
    assert {"R03", "R11"} <= named["response_length"]
    assert named["value_loss"].isdisjoint({"R02", "R03", "R05", "R06", "R07", "R08", "R10", "R11"})


def test_a_reward_that_never_comes_is_said_once() -> None:
    draw = np.random.default_rng(1)
    nothing = draw.binomial(40, 0.02, 60) / 40
    assert alarms(rewards(*nothing)) == [(Symptom.NO_SIGNAL, 16)]
    critic = rewards(*nothing)
    value = Column.complete(np.full(len(critic), 0.02))
    assert (
        alarms(dataclasses.replace(critic, columns={**critic.columns, "value_loss": value})) == []
    )
    assert alarms(rewards(*nothing, every=1)) == []  # too early to say
    slow_start = np.where(np.arange(60) < 10, nothing, 0.3)
    assert alarms(rewards(*slow_start)) == []
