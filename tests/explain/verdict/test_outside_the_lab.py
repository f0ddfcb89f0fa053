"""Curves of runs outside the lab, drawn to their published numbers: what is said at their end.

The loss alone, or with the norms and rates that its log had; several seeds of each.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.kit.synthetic import Array, explained

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Column, Event
from trimtab.core.incidents import IncidentClass
from trimtab.diagnosis import diagnose
from trimtab.explain.comparison import apply_check
from trimtab.explain.verification import verification_checks

Class = IncidentClass
Random = np.random.Generator
Signals = dict[str, Array]


def log(
    records: int,
    dice: Random,
    noise: float,
    start: float = 9.0,
    floor: float = 2.0,
    pace: float = 100,
) -> Signals:
    """The loss and gradient norm of a run from scratch."""
    loss = (floor + (start - floor) * np.exp(-np.arange(records) / pace)) * np.exp(
        dice.normal(0, noise, records)
    )
    return {"loss": loss, "grad_norm": 0.5 * np.exp(dice.normal(0, 0.15, records))}


def climbs_then_nan(dice: Random) -> Signals:
    signals = log(2800, dice, 0.015)
    since = np.arange(2800) - 1800
    climbs = np.minimum(0.12 * since, 2.4) + 3.1 * np.clip((since - 20) / 880, 0, 1)
    signals["loss"] += np.where(since > 0, climbs, 0)
    signals["grad_norm"] *= np.where(since >= 0, 24, 1)
    signals["loss"][2701:] = signals["grad_norm"][2701:] = np.nan
    return signals


def rate_times_forty(dice: Random) -> Signals:
    signals = log(600, dice, 0.01, start=6.2, floor=5.0, pace=80)
    since = np.arange(600) - 272
    signals["loss"] += np.where(since >= 0, 0.38 + 0.6 * np.exp(-since.clip(0) / 40), 0)
    return {**signals, "lr": np.where(since >= 0, 0.012, 3e-4)}


def drifts(signal: str, rate: float) -> Callable[[Random], Signals]:
    """Return a loss that rises by 0.0025 a step, while another signal doubles or halves."""

    def draw(dice: Random) -> Signals:
        since = (np.arange(2000) - 1000).clip(0)
        signals = log(2000, dice, 0.012) | {"lr": np.full(2000, 3e-4), "param_norm": np.ones(2000)}
        signals["loss"] += 0.0025 * since
        signals[signal] = signals[signal] * 2 ** (since / rate)
        return signals

    return draw


def dies_slowly(dice: Random) -> Signals:
    signals = log(6000, dice, 0.02, start=10, floor=4.9, pace=300)
    signals["loss"] += 2.3 * np.clip((np.arange(6000) - 3000) / 2500, 0, 1)
    return {"loss": signals["loss"]}


def without_targets(dice: Random) -> Signals:
    signals = log(60, dice, 0.02, pace=20)
    signals["loss"][30:], signals["grad_norm"][30:] = 0.0, 1.4142
    return signals


def explodes_in_eight_records(dice: Random) -> Signals:
    loss = np.array([0.9, 0.7, 0.5, 0.42, 0.37, 0.35, 124.6, 125.1])
    return {"loss": loss * np.exp(dice.normal(0, 0.01, 8))}


def rises_after_a_wild_start(dice: Random) -> Signals:
    start = [12.4, 12.3, 48, 33, 20, 15, 12, 11.6]
    loss = np.concatenate((start, np.full(25, 11.3), np.linspace(33, 62, 29)))
    return {"loss": loss * np.exp(dice.normal(0, 0.02, 62))}


def grows_by_a_half(dice: Random) -> Signals:
    signals = log(1200, dice, 0.03, pace=90)
    since = (np.arange(1200) - 700).clip(0)
    signals["loss"] += 1 - np.exp(-since / 150)
    return signals


LOST, ACTS = {Class.DIVERGENT, Class.DEAD}, {ActionKind.STOP, ActionKind.ROLL_BACK}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("draw", "onset", "classes"),
    [
        (climbs_then_nan, 1800, LOST),
        (rate_times_forty, 272, {Class.LINGERING}),
        (drifts("lr", 280), 1000, {Class.DIVERGENT}),
        (drifts("param_norm", 150), 1000, {Class.DIVERGENT}),
        (drifts("param_norm", -150), 1000, {Class.DIVERGENT}),
        (drifts("grad_norm", 240), 1000, {Class.DIVERGENT}),
        (dies_slowly, 3000, {Class.DIVERGENT}),
        (grows_by_a_half, 700, {Class.DIVERGENT, Class.LINGERING}),
        (without_targets, 30, {Class.DEAD}),
        (explodes_in_eight_records, 6, {Class.DIVERGENT}),
        (rises_after_a_wild_start, 33, {Class.DIVERGENT}),
    ],
)
def test_what_is_lost_is_one_incident_with_its_onset_and_is_acted_on(
    draw: Callable[[Random], Signals], onset: int, classes: set[Class], seed: int
) -> None:
    ((found, at, action),) = said(draw(np.random.default_rng(seed)))
    assert found in classes
    assert abs(at - onset) <= max(20, onset // 20)
    assert action in ACTS


def snaps_back(dice: Random, tail: int, height: float) -> Signals:
    loss = (0.55 + 2 * np.exp(-np.arange(1500) / 200)) * np.exp(dice.normal(0, 0.04, 1500))
    loss[900] = height
    loss[901 : 901 + tail] *= 1 + 0.5 * np.linspace(1, 0, tail)
    return {"loss": loss}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tail", [3, 10])
@pytest.mark.parametrize("height", [1.4, 1.95])
def test_a_spike_of_a_thinned_log_that_is_back_in_twenty_records_needs_nothing(
    tail: int, height: float, seed: int
) -> None:
    signals = snaps_back(np.random.default_rng(seed), tail, height)
    for until in (930, 960, 1500):
        cut = {name: values[:until] for name, values in signals.items()}
        assert {(found, act) for found, _, act in said(cut, 100)} <= {
            (Class.RECOVERED, ActionKind.WAIT)
        }


@pytest.mark.parametrize("is_scrambled", [True, False])
def test_labels_scrambled_in_a_fine_tuning_are_seen(is_scrambled: bool) -> None:
    seen = 0
    for seed in range(8):
        dice, steps = np.random.default_rng(seed), np.arange(260)
        level = 2.86 + 1.3 * np.exp(-steps / 18) + 0.34 * is_scrambled * (steps >= 120)
        seen += bool(said({"loss": level + dice.normal(0, 0.23, 260)}))
    assert seen >= 6 if is_scrambled else not seen


@pytest.mark.parametrize("of_norm", [30.0, 1.0])
def test_one_factor_in_loss_and_norm_is_no_loss_of_what_was_learnt(of_norm: float) -> None:
    signals = log(900, np.random.default_rng(0), 0.015)
    since = np.arange(900) >= 600
    signals["loss"] *= np.where(since, 30.0, 1.0)
    signals["grad_norm"] *= np.where(since, of_norm, 1.0)
    (diagnosis,) = diagnose(signals).incidents
    facts = diagnosis.incident.facts
    assert (facts.factor is not None) is (of_norm > 1)
    assert (diagnosis.incident_class is Class.LINGERING) is (of_norm > 1)
    assert ("may still be there" in diagnosis.action.reason) is (of_norm > 1)


def test_nan_now_and_then_is_acted_on_wherever_the_log_ends() -> None:
    signals = log(1500, np.random.default_rng(0), 0.01)
    often = (np.arange(1500) >= 900) & (np.random.default_rng(1).random(1500) < 0.4)
    signals["loss"][often] = signals["grad_norm"][often] = np.nan
    for until in range(1100, 1500, 25):
        ((named, _, act),) = said({name: values[:until] for name, values in signals.items()})
        assert named in {Class.DEAD, Class.LINGERING}, until
        assert act in ACTS, until


def test_a_run_that_lingers_again_fails_the_check_and_a_healthy_one_does_not() -> None:
    for seed in range(4):
        bad, healthy = (log(1600, np.random.default_rng(seed + i), 0.04) for i in (0, 10))
        since = np.arange(1600) - 600
        lingers = np.where(since >= 0, 0.3, 0)
        first = {**bad, "loss": bad["loss"] + lingers + 3 * np.exp(-np.abs(since) / 4)}
        report = diagnose(first)
        (found,) = report.incidents
        assert found.incident_class is Class.LINGERING
        checks = [
            one for one in verification_checks(found, report.block) if one.mean_max is not None
        ]
        again = {**bad, "loss": bad["loss"] + lingers}
        for signals, is_healthy in ((again, False), (healthy, True)):
            block = diagnose(signals).block
            assert [apply_check(one, block, None).passed for one in checks] == [is_healthy], seed


def test_the_fix_of_a_decay_follows_the_way_the_norm_has_gone() -> None:
    for rate, way in ((150, "double"), (-150, "halve")):
        report = diagnose(drifts("param_norm", rate)(np.random.default_rng(0)))
        (found,) = (one for one in report.incidents if one.incident_class is Class.DIVERGENT)
        assert f"{way} the weight decay" in found.remedy.lower()


def test_a_loss_has_not_recovered_where_it_lingers_and_is_back_where_it_is() -> None:
    for rest, is_said in ((1.1, True), (0.0, False)):
        signals = log(900, np.random.default_rng(0), 0.012)
        since = np.arange(900) - 600
        signals["loss"] += np.where(since >= 0, rest + 2.5 * np.exp(-since.clip(0) / 9), 0)
        assert ("did not recover" in diagnose(signals).to_markdown()) is is_said


def test_a_loss_with_few_digits_raises_nothing() -> None:
    dice, steps = np.random.default_rng(0), np.arange(1000)
    rounded = np.round(1.3 + 1.7 * np.exp(-steps / 80) + dice.normal(0, 0.002, 1000), 2)
    near_zero = np.round(
        (0.7 * np.exp(-steps / 50) + 0.00015) * np.exp(dice.normal(0, 0.2, 1000)), 4
    )
    for loss in (rounded, near_zero):
        assert said({"loss": loss}, 10) == []


def test_the_loss_of_a_generator_leads_to_no_act() -> None:
    dice = np.random.default_rng(0)
    loss = 0.7 + np.clip(np.arange(400) - 48, 0, 40) / 8 * np.exp(dice.normal(0, 0.3, 400))
    assert [act for *_, act in said({"loss": loss}) if act is not ActionKind.WAIT]
    beside = {"loss": loss, "adversary_loss": np.ones(400)}
    assert all(act is ActionKind.WAIT for *_, act in said(beside))


@pytest.mark.parametrize("kind", ["unfreeze", "Phase 2: code", "merged LoRA", "evaluation"])
def test_what_an_event_announced_is_not_rolled_back(kind: str) -> None:
    signals = log(1200, np.random.default_rng(0), 0.01)
    signals["loss"][800:] += 0.5
    ((*_, act),) = said(signals, events=[Event(kind=kind, tick=798, step=798)])
    assert (act is ActionKind.WAIT) == (kind != "evaluation")


def switched(dice: Random, name: str) -> Signals:
    """A masked autoencoder whose mask grows at step 400: the loss rises, and comes back in part."""
    signals = log(1600, dice, 0.01)
    since = (np.arange(1600) - 400).clip(0)
    signals["loss"] += np.where(since > 0, 0.02 + 0.8 * np.exp(-since / 30), 0)
    signals[name] = np.where(np.arange(1600) < 400, 0.25, 0.5)
    return signals


@pytest.mark.parametrize("fault", ["nan", "weight", "rate"])
def test_a_fault_is_no_part_of_an_incident_that_is_all_but_over(fault: str) -> None:
    for seed in range(4):
        signals = switched(np.random.default_rng(seed), "mask_ratio")
        rate = signals["lr"] = np.full(1600, 1e-3)
        match fault:
            case "nan":
                signals["loss"][900:] = np.nan
            case "weight":
                signals["loss"][900:] += 5.0
            case "rate":
                signals["loss"][900:] += 0.7
                rate[900:] *= 30
        named, onset, act = said(signals)[-1]
        assert 890 <= onset <= 900, seed
        assert named.is_severe, seed
        assert act is not ActionKind.WAIT, seed


@pytest.mark.parametrize(("name", "is_setting"), [("mask_ratio", True), ("skipped", False)])
def test_a_setting_that_was_switched_at_the_onset_may_be_meant(name: str, is_setting: bool) -> None:
    for seed in range(4):
        signals = switched(np.random.default_rng(seed), name)
        signals["loss"][400:] += 0.6
        ((*_, act),) = said(signals)
        assert (act is ActionKind.WAIT) is is_setting, seed


def said(
    signals: Signals, stride: int = 1, events: Sequence[Event] = ()
) -> list[tuple[Class, int, ActionKind]]:
    """Return class, onset and action of every incident at the end of a log."""
    columns = {name: Column.complete(values) for name, values in signals.items()}
    steps = stride * np.arange(len(signals["loss"]))
    run = Block.from_columns(columns, step=steps, events=events)
    return [
        (one.incident_class, one.incident.onset.step, one.action.kind) for one in explained(run)
    ]
