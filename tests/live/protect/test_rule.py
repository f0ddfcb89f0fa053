"""The rule: equal to one on the host, calm on healthy runs, awake on spikes, and never stuck."""

import math

import numpy as np
import pytest
import torch
from benchmarks.gate import healthy_runs, make_rule, run_rule, spikes, steps_of, with_bloom
from benchmarks.real_runs import RUNS
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.protect.streams import HostRule, healthy

from trimtab.core.config import GateConfig
from trimtab.core.errors import ConfigError

NAN, INF = math.nan, math.inf
needs_runs = pytest.mark.skipif(not RUNS.exists(), reason="the public runs are not here")


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    fault_rate=st.sampled_from([0.0, 0.02, 0.3]),
    clip_excess=st.booleans(),
    level_moves=st.booleans(),
)
def test_the_same_decisions_as_a_rule_on_the_host(
    seed: int, fault_rate: float, clip_excess: bool, level_moves: bool
) -> None:
    config = GateConfig(
        window=24,
        min_history=9,
        max_consecutive_discards=4,
        max_recent_discards=8,
        clip_excess=clip_excess,
    )
    dice = np.random.default_rng(seed)
    stream = healthy(150, seed)
    for number in np.flatnonzero(dice.random(150) < fault_rate).tolist():
        loss, norm = stream[number]
        stream[number] = (
            (loss * dice.choice([1, 1.3, 4]), norm * dice.choice([1, 5, 50])),
            (NAN, norm),
            (loss, INF),
            (INF, NAN),
            (loss, 0.0),
        )[dice.choice(5, p=[0.6, 0.1, 0.1, 0.1, 0.1])]
    if level_moves:
        stream[80:] = [(loss * 2, norm * 30) for loss, norm in stream[80:]]
    rule, host = make_rule(**vars_of(config)), HostRule(config)
    for number, (found, expected) in enumerate(
        zip(run_rule(rule, stream), (host.decide(*step) for step in stream), strict=True)
    ):
        assert found.discarded == expected.discarded, number
        assert found.forgot == expected.forgot, number
        assert found.shrink == pytest.approx(expected.shrink, rel=1e-4), number


def vars_of(config: GateConfig) -> dict[str, object]:
    return config.to_dict()


def test_not_finite_is_out_from_the_first_step_on_and_leaves_no_mark() -> None:
    stream = healthy(300)
    marked = list(stream)
    bad = {0: (NAN, 1.0), 1: (2.0, NAN), 7: (INF, INF), 150: (-INF, 0.3), 200: (2.0, INF)}
    for number, step in bad.items():
        marked[number] = step
    outcomes = run_rule(make_rule(), marked)
    assert [n for n, outcome in enumerate(outcomes) if outcome.discarded] == list(bad)


def test_one_nan_does_not_make_the_steps_behind_it_be_skipped() -> None:
    stream = healthy(400)
    stream[200] = (NAN, NAN)
    outcomes = run_rule(make_rule(), stream)
    assert [n for n, outcome in enumerate(outcomes) if outcome.discarded] == [200]


def test_a_spike_forty_steps_behind_another_is_seen_as_well() -> None:
    stream, first = with_bloom(healthy(600), 300)
    stream, second = with_bloom(stream, 340)
    outcomes = run_rule(make_rule(), stream)
    for spike in (first, second):
        # Its very first step is 4 times the usual norm with the usual loss: healthy runs have that.
        assert [n for n in spike if outcomes[n].discarded] == list(spike)[1:]
    assert sum(outcome.discarded for outcome in outcomes) == 14


def test_a_hard_batch_and_a_lucky_one_are_taken() -> None:
    stream = healthy(300)
    loss, norm = stream[200]
    for odd in ((loss + 0.3, norm), (loss, norm * 6), (loss * 0.2, norm / 100), (loss, 0.0)):
        stream[200] = odd
        assert not any(outcome.discarded for outcome in run_rule(make_rule(), stream))


def test_no_livelock_when_the_level_moves() -> None:
    config = GateConfig()
    stream = healthy(800)
    stream[300:] = [(loss + 4.0, norm * 50) for loss, norm in stream[300:]]
    stream[700] = (stream[700][0] * 5, stream[700][1] * 50)
    outcomes = run_rule(make_rule(), stream)
    discarded = [n for n, outcome in enumerate(outcomes) if outcome.discarded]
    assert discarded == [*range(300, 300 + config.max_consecutive_discards), 700]
    assert [n for n, outcome in enumerate(outcomes) if outcome.forgot] == [320]


def test_no_livelock_when_every_other_step_is_odd() -> None:
    stream = healthy(1500)
    stream[300::2] = [(loss * 3, norm * 50) for loss, norm in stream[300::2]]
    outcomes = run_rule(make_rule(), stream)
    assert any(outcome.forgot for outcome in outcomes)
    assert sum(outcome.discarded for outcome in outcomes) < 100
    assert not any(outcome.discarded for outcome in outcomes[-300:])


def test_a_nan_is_never_accepted_however_many_come() -> None:
    stream = healthy(200) + [(NAN, NAN)] * 500 + healthy(100)
    outcomes = run_rule(make_rule(), stream)
    assert all(outcome.discarded for outcome in outcomes[200:700])
    assert not any(outcome.discarded or outcome.forgot for outcome in outcomes[700:])
    assert not any(outcome.forgot for outcome in outcomes)


def test_moderate_excess_is_scaled_down_to_the_usual_if_asked() -> None:
    stream = healthy(300)
    usual = float(np.median([norm for _, norm in stream[150:250]]))
    stream[250] = (stream[250][0], usual * 6)
    assert run_rule(make_rule(), stream)[250].shrink == 1.0
    outcomes = run_rule(make_rule(clip_excess=True), stream)
    assert outcomes[250].shrink == pytest.approx(6, rel=0.1)
    assert not outcomes[250].discarded
    assert sum(outcome.shrink > 1 for outcome in outcomes) == 1


def test_a_state_that_was_saved_goes_on_as_if_nothing_had_been() -> None:
    stream, _ = with_bloom(healthy(600), 313)
    whole = run_rule(make_rule(), stream)
    for cut in (5, 100, 316, 400):
        first, second = make_rule(), make_rule()
        before = run_rule(first, stream[:cut])
        second.load_state_dict(first.state_dict())
        assert before + run_rule(second, stream[cut:]) == whole


def test_a_state_that_does_not_fit_is_told() -> None:
    with pytest.raises(ConfigError, match=r"another gate\.window"):
        make_rule().load_state_dict(make_rule(window=64, min_history=32).state_dict())
    with pytest.raises(ConfigError, match="leave it out"):
        make_rule().load_state_dict({})


def test_the_rule_runs_where_nothing_can_be_read() -> None:
    rule = make_rule()
    meta = type(rule)(GateConfig(clip_excess=True), torch.device("meta"))
    for _ in range(20):
        verdict = meta.judge(torch.zeros(8, device="meta"))
        meta.learn(verdict, verdict.discards)


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
    # The loss of its second step may still be within what the noise of a batch allows.
    assert all(all(discarded[2:]) for discarded in found)
