"""The rule of the trial of states, on numbers alone."""

import math
import random
from typing import Any

import pytest

from trimtab.live.recover.trial_rule import (
    APART,
    MAX_QUIET,
    MAX_RAISED,
    NUM_WINDOWS,
    OPEN_SIGMAS,
    WINDOW,
    LossLevel,
    Outcome,
    TrialSchedule,
    judge,
    rates_of,
    settings_of,
    what_changed,
)

ALL = WINDOW * NUM_WINDOWS


def gaps(mean: float, noise: float, count: int, seed: int = 0) -> list[float]:
    dice = random.Random(seed)
    return [mean + dice.gauss(0, noise) for _ in range(count)]


def learnt(level: float = 2.0, noise: float = 0.1, slope: float = 0.0) -> LossLevel:
    usual = LossLevel()
    dice = random.Random(1)
    for step in range(64):
        usual.learn(level - slope * step + dice.gauss(0, noise))
    return usual


def test_a_loss_far_above_its_level_or_a_mean_as_clearly() -> None:
    assert learnt().sigmas_above(2.1) < OPEN_SIGMAS
    assert learnt().sigmas_above(3.0) > OPEN_SIGMAS
    assert learnt().sigmas_above(math.nan) == math.inf
    usual = learnt()
    found = []
    for _ in range(WINDOW):  # each is within the noise, their mean is not
        found.append(usual.sigmas_above(2.25))
        usual.learn(2.25)
    assert found[0] < OPEN_SIGMAS < found[-1]


def test_a_falling_loss_is_no_noise() -> None:
    falling = learnt(level=3.0, noise=0.02, slope=0.01)
    assert falling.sigmas_above(2.8) > OPEN_SIGMAS  # it began at 3, and should be 2.36 by now


def test_nothing_is_far_before_the_level_is_known() -> None:
    assert LossLevel().sigmas_above(1e9) == -math.inf


def outcome(gaps: list[float], olds: list[float], more: float = 0.0) -> Outcome | None:
    return judge(gaps, olds, [gap + old + more for gap, old in zip(gaps, olds, strict=True)])


def test_each_outcome() -> None:
    olds = gaps(2.0, 0.1, ALL)
    better, worse = gaps(0.5, 0.05, ALL), gaps(-0.1, 0.05, ALL)
    assert outcome(better[:5], olds[:5]) is None
    assert outcome(worse[:WINDOW], olds[:WINDOW]) is Outcome.PRESENT
    assert outcome(better[:WINDOW], olds[:WINDOW]) is None
    assert outcome(better[: 2 * WINDOW], olds[: 2 * WINDOW]) is None
    assert outcome(better, olds) is Outcome.OLD
    within_the_data = gaps(0.05, 0.001, ALL)
    assert outcome(within_the_data[: 2 * WINDOW], olds[: 2 * WINDOW]) is Outcome.UNCLEAR
    noisy = gaps(0.3, 1.0, ALL, seed=3)
    assert outcome(noisy[: 2 * WINDOW], olds[: 2 * WINDOW]) in (Outcome.UNCLEAR, Outcome.PRESENT)
    healed = [*better[: 3 * WINDOW], *worse[:WINDOW]]
    assert outcome(healed, olds) is Outcome.PRESENT
    assert outcome(better, [*olds[:-1], math.nan]) is Outcome.UNCLEAR
    assert outcome(better, olds, more=0.3) is Outcome.OTHER_LOSS


def groups(**options: Any) -> list[dict[str, Any]]:
    return [{"params": [], "lr": 0.1, "initial_lr": 0.1, "weight_decay": 0.0, **options}]


@pytest.mark.parametrize(
    ("now", "rates", "expected"),
    [
        (groups(), [0.1] * 50, ""),
        (groups(lr=0.14), [10.0] * MAX_RAISED, ""),
        (groups(lr=0.16), [0.1], "the learning rate is raised"),
        (groups(), [0.2] * (MAX_RAISED + 1), "the learning rate was raised for more than 16"),
        (groups(weight_decay=0.1), [0.1], "your code has changed weight_decay"),
        (groups(initial_lr=1.0), [0.1], ""),
        ([*groups(), *groups()], [0.1], "the learning rate is raised"),
    ],
)
def test_what_may_be_on_purpose(now: Any, rates: list[float], expected: str) -> None:
    then = settings_of(groups())
    found = what_changed(then, settings_of(now), [(rate,) for rate in rates])
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_what_was_changed_before_the_snapshot_may_show_only_after_it() -> None:
    now = settings_of(groups(weight_decay=0.1))
    assert what_changed(now, now, [(0.1,)]) == ""
    earlier = [settings_of(groups())]
    assert what_changed(now, now, [(0.1,)], earlier) == "your code has changed weight_decay"


def test_a_rate_that_cannot_be_read_counts_as_raised() -> None:
    assert math.isnan(rates_of(groups(lr=object()))[0])
    settings = settings_of(groups(lr=object()))
    assert what_changed(settings, settings, [])


def test_noise_opens_fewer_and_fewer_trials_and_harm_still_does() -> None:
    schedule, opened = TrialSchedule(), []
    for update in range(100, 5100):
        if schedule.opens(update, 5.0):
            opened.append(update)
            schedule.end(update + 10, has_led_to_something=False)
    assert len(opened) < 5000 / MAX_QUIET + 5
    assert schedule.opens(opened[-1] + 11, 11.0)
    schedule.end(6000, has_led_to_something=True)
    assert not schedule.opens(6000 + APART - 1, 1e9)
    assert schedule.opens(6000 + APART, 1e9)
