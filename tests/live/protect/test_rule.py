"""The rule: equal to one on the host, calm on healthy runs, awake on spikes, never in the way."""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples, some_of
from tests.kit.gate_rule import (
    Outcome,
    healthy_runs,
    make_rule,
    run_rule,
    spikes,
    steps_of,
    with_bloom,
)
from tests.kit.public_runs import MISSING, RUNS
from tests.live.protect.streams import HostRule, healthy

from trimtab.core.errors import ConfigError
from trimtab.live.arithmetic import DeviceMath
from trimtab.live.protect.rule import IS_ARMED, REPORT_NAMES, THRESHOLDS, GateThresholds, Rule

NAN, INF = math.nan, math.inf
needs_runs = pytest.mark.skipif(not RUNS.exists(), reason=MISSING)

Stream = list[tuple[float, float]]


def decided(stream: Stream) -> tuple[list[int], list[int]]:
    """Return the steps that a fresh rule discards, and those that it scales down."""
    outcomes = run_rule(make_rule(), stream)
    return discarded(outcomes), scaled(outcomes)


def discarded(outcomes: list[Outcome]) -> list[int]:
    return [number for number, outcome in enumerate(outcomes) if outcome.discarded]


def scaled(outcomes: list[Outcome]) -> list[int]:
    return [
        number
        for number, outcome in enumerate(outcomes)
        if outcome.shrink > 1 and not outcome.discarded
    ]


def multiply(stream: Stream, at: int, loss: float, norm: float) -> None:
    """Make one step of a stream odd."""
    stream[at] = (stream[at][0] * loss, stream[at][1] * norm)


SHORT_MEMORY = GateThresholds(
    window=24,
    min_history=18,
    min_history_extreme=9,
    max_consecutive_discards=4,
    max_discards=6,
    max_scaled=9,
    discard_memory_steps=60,
    scale_memory_steps=40,
)
"""Thresholds with which a short stream comes to every decision."""


def with_faults(stream: Stream, seed: int, rate: float, *, level_moves: bool) -> Stream:
    """A healthy stream with steps of every kind in it."""
    dice = np.random.default_rng(seed)
    stream = list(stream)
    for number in np.flatnonzero(dice.random(len(stream)) < rate).tolist():
        loss, norm = stream[number]
        stream[number] = (
            (loss * dice.choice([1, 1.3, 4]), norm * dice.choice([1, 6, 50, 1000])),
            (NAN, norm),
            (loss, INF),
            (INF, NAN),
            (loss, 0.0),
        )[dice.choice(5, p=[0.6, 0.1, 0.1, 0.1, 0.1])]
    if level_moves:
        half = len(stream) // 2
        stream[half:] = [(loss * 2, norm * 30) for loss, norm in stream[half:]]
    return stream


def assert_alike(found: list[Outcome], expected: list[Outcome]) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.discarded == other.discarded, number
        assert one.lets_through == other.lets_through, number
        assert one.shrink == pytest.approx(other.shrink, rel=1e-4), number


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    fault_rate=st.sampled_from([0.0, 0.02, 0.3]),
    level_moves=st.booleans(),
)
def test_the_rule_decides_as_one_written_from_its_description(
    seed: int, fault_rate: float, level_moves: bool
) -> None:
    stream = with_faults(healthy(150, seed), seed, fault_rate, level_moves=level_moves)
    host = HostRule(SHORT_MEMORY)
    found = run_rule(make_rule(**asdict(SHORT_MEMORY)), stream)
    assert_alike(found, [host.decide(*step) for step in stream])


@pytest.mark.parametrize("num_steps", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_floats_and_tensors_decide_alike(num_steps: int) -> None:
    dice = np.random.default_rng(num_steps)
    done = 0
    while done < num_steps:
        seed, thresholds = int(dice.integers(2**32)), (SHORT_MEMORY, THRESHOLDS)[dice.integers(2)]
        rate = float(dice.choice([0.0, 0.01, 0.3]))
        stream = with_faults(healthy(500, seed), seed, rate, level_moves=bool(dice.integers(2)))
        settings = asdict(thresholds)
        device = make_rule(DeviceMath(torch.device("cpu")), **settings)
        assert_alike(run_rule(make_rule(**settings), stream), run_rule(device, stream))
        done += len(stream)


@pytest.mark.parametrize("starts_on_host", [True, False])
def test_a_state_saved_on_a_device_continues_on_a_host(starts_on_host: bool) -> None:
    stream, _ = with_bloom(healthy(600), 313)
    rules = [make_rule(), make_rule(DeviceMath(torch.device("cpu")))]
    first, second = rules if starts_on_host else rules[::-1]
    before = run_rule(first, stream[:320])
    second.load_state_dict(first.state_dict())
    assert_alike(before + run_rule(second, stream[320:]), run_rule(make_rule(), stream))


def test_not_finite_is_discarded_from_the_first_step_on_and_leaves_no_trace() -> None:
    stream = healthy(300)
    bad = {0: (NAN, 1.0), 1: (2.0, NAN), 7: (INF, INF), 150: (-INF, 0.3), 200: (2.0, INF)}
    for number, step in bad.items():
        stream[number] = step
    assert decided(stream) == (list(bad), [])


def test_a_nan_is_never_accepted_however_many_come() -> None:
    outcomes = run_rule(make_rule(), healthy(200) + [(NAN, NAN)] * 500 + healthy(100))
    assert discarded(outcomes) == list(range(200, 700))
    assert not any(outcome.lets_through for outcome in outcomes)


def test_a_spike_is_neutralised_and_so_is_one_forty_steps_later() -> None:
    stream, first = with_bloom(healthy(600), 300)
    stream, second = with_bloom(stream, 340)
    outcomes = run_rule(make_rule(), stream)
    touched = discarded(outcomes) + scaled(outcomes)
    # Its very first step is 4 times the usual norm with the usual loss: healthy runs have that.
    assert sorted(touched) == [*list(first)[1:], *list(second)[1:]]
    assert len(discarded(outcomes)) <= THRESHOLDS.max_discards


def test_a_hard_batch_a_lucky_one_and_a_high_loss_alone_are_taken() -> None:
    only_loss = (1e6, 1)
    for loss, norm in ((1.1, 1), (1, 4.5), (0.2, 0.01), (1, 0), (2.5, 3), (6, 11), only_loss):
        stream = healthy(300)
        multiply(stream, 200, loss, norm)
        assert decided(stream) == ([], []), (loss, norm)


def test_a_loss_that_falls_fast_does_not_hide_a_bad_batch() -> None:
    noise = np.random.default_rng(0).normal(0, 0.15, 200)
    stream = [(5.5 - 0.007 * n + float(noise[n]), norm) for n, (_, norm) in enumerate(healthy(200))]
    stream[192] = (6.3, stream[192][1] * 30)
    # Its trend spreads the window by more than the noise: 6.3 is 4 sigmas of that above the median.
    assert decided(stream) == ([192], [])


def test_a_large_norm_with_the_usual_loss_is_scaled_down_to_the_usual() -> None:
    stream = healthy(300)
    usual = float(np.median([norm for _, norm in stream[150:250]]))
    stream[250] = (stream[250][0], usual * 8)
    outcomes = run_rule(make_rule(), stream)
    assert (discarded(outcomes), scaled(outcomes)) == ([], [250])
    assert outcomes[250].shrink == pytest.approx(8, rel=0.1)


def test_an_extreme_norm_is_scaled_down_whatever_the_loss_and_soon_after_the_start() -> None:
    for at in (40, 90, 200):
        stream = healthy(300)
        multiply(stream, at, 1e4, 1e4)
        assert decided(stream) == ([], [at])
    stream = healthy(300)
    multiply(stream, 20, 1.0, 1e6)
    assert decided(stream) == ([], [])


@pytest.mark.parametrize("rate", some_of([0.005, 0.02, 0.1], 0.02))
def test_a_mode_of_the_data_is_let_through_after_a_handful(rate: float) -> None:
    dice = np.random.default_rng(1)
    stream = healthy(8000)
    rare = np.flatnonzero(dice.random(8000) < rate).tolist()
    for number in rare:
        multiply(stream, number, 1.8, 30.0)
    outcomes = run_rule(make_rule(), stream)
    assert set(discarded(outcomes) + scaled(outcomes)) <= set(rare)
    assert len(discarded(outcomes)) <= 8
    assert len(scaled(outcomes)) <= 16 + 8000 / 250


def test_damaged_weights_are_let_through_at_once_and_reported() -> None:
    stream = healthy(400)
    stream[300:] = [(loss * 7, norm * 11) for loss, norm in stream[300:]]
    outcomes = run_rule(make_rule(), stream)
    assert (discarded(outcomes), scaled(outcomes)) == ([], [])
    reported = [number for number, outcome in enumerate(outcomes) if outcome.lets_through]
    assert reported[0] == 300 + THRESHOLDS.max_consecutive_discards


def test_a_new_level_that_looks_like_an_accident_is_held_for_a_handful_of_steps() -> None:
    stream = healthy(800)
    stream[300:] = [(loss * 1.5, norm * 50) for loss, norm in stream[300:]]
    outcomes = run_rule(make_rule(), stream)
    assert (discarded(outcomes), scaled(outcomes)) == (list(range(300, 305)), [])
    assert next(n for n, outcome in enumerate(outcomes) if outcome.lets_through) == 305


@pytest.mark.parametrize("level", [0.0, 1e-9, -2.0])
def test_a_loss_around_zero_or_below_has_an_honest_scale(level: float) -> None:
    stream = [(level, norm) for _, norm in healthy(300)]
    stream[250] = (level + 1e-12, stream[250][1])
    stream[260] = (level, stream[260][1] * 1000)
    assert decided(stream) == ([], [260])


def test_steps_without_a_gradient_do_not_keep_the_rule_from_being_armed() -> None:
    stream = healthy(1500)
    for number in range(1500):
        if number % 10:
            stream[number] = (0.0, 0.0)
    multiply(stream, 1400, 1.0, 1000.0)
    assert decided(stream) == ([], [1400])


def test_the_rule_reports_whether_it_is_armed() -> None:
    rule = make_rule()
    armed = []
    for loss, norm in healthy(128):
        verdict = rule.judge([loss, 1.0, 0.0, 0.0, norm, 1.0, 0.0, 0.0])
        armed.append(dict(zip(REPORT_NAMES, rule.report(verdict), strict=True))[IS_ARMED])
        rule.learn(verdict)
    assert armed == [0.0] * 96 + [1.0] * 32


def test_gradients_that_were_changed_since_are_not_scaled() -> None:
    rule = make_rule()
    stream = healthy(200)
    run_rule(rule, stream)
    bad = [stream[-1][0], 1.0, 0.0, 0.0, 30.0, 1.0, 0.0, 0.0]
    assert float(rule.judge(bad).shrink) > 10
    assert float(rule.judge(bad, may_scale=False).shrink) == 1


def test_a_saved_state_continues_as_if_nothing_had_happened() -> None:
    stream, _ = with_bloom(healthy(600), 313)
    whole = run_rule(make_rule(), stream)
    for cut in (5, 100, 316, 400):
        first, second = make_rule(), make_rule()
        before = run_rule(first, stream[:cut])
        second.load_state_dict(first.state_dict())
        assert before + run_rule(second, stream[cut:]) == whole


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="different version"):
        make_rule().load_state_dict(make_rule(window=112).state_dict())
    with pytest.raises(ConfigError, match="leave it out"):
        make_rule().load_state_dict({})


def test_the_rule_decides_alike_in_a_loop_that_runs_in_autocast() -> None:
    stream, _ = with_bloom(healthy(400), 300)
    outside = run_rule(make_rule(), stream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_rule(make_rule(), stream) == outside


def test_the_rule_runs_where_nothing_can_be_read() -> None:
    rule = Rule(DeviceMath(torch.device("meta")))
    for _ in range(20):
        rule.learn(rule.judge(torch.zeros(8, device="meta")))


@needs_runs
@pytest.mark.slow
def test_less_than_one_discard_in_ten_thousand_healthy_real_steps() -> None:
    outcomes = [o for run in healthy_runs() for o in run_rule(make_rule(), steps_of(run))]
    assert len(outcomes) > 80_000
    assert sum(outcome.discarded for outcome in outcomes) * 10_000 <= len(outcomes)


@needs_runs
@pytest.mark.slow
def test_blooms_spike_in_real_runs() -> None:
    found = spikes([run for run in healthy_runs() if run.is_every_step], 8)
    assert len(found) >= 32
    touched = [[action != "taken" for action in actions] for actions in found]
    # The norm of its second step may still be within what the noise of a run allows.
    assert all(all(actions[2:]) for actions in touched)
    assert np.mean([actions[1] for actions in touched]) >= 0.9


PAGE = Path(__file__).parents[3] / "docs" / "protect.md"


def test_the_thresholds_are_those_of_the_rule() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    gate = THRESHOLDS
    for sentence in (
        f"norm > {gate.norm_ratio:.0f} x median",
        f"norm > median + {gate.norm_sigmas:.0f} sigmas",
        f"loss > median + {gate.loss_sigmas:.0f} sigmas",
        f"loss > {1 + gate.loss_excess:.1f} x median",
        f"norm > {gate.extreme_norm_ratio:.0f} x median",
        f"more than {gate.max_consecutive_discards} steps in a row",
        f"a norm of exp({gate.norm_explained_by_loss} x) times its median",
        f"over the last {gate.window} steps",
        f"The first {gate.min_history_extreme} steps",
        f"| discarded | {gate.max_discards:.0f}, then one in",
        f"| {gate.max_scaled:.0f}, then one in",
        f"| {gate.max_extreme_scaled:.0f}, then one in",
    ):
        assert sentence in text, sentence
