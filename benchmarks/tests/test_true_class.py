"""The true class of a fault, from synthetic pairs of a run and its twin."""

import numpy as np
import pytest
from benchmarks.true_class import true_class
from benchmarks.twins import Pair
from tests.kit.synthetic import block_of

from trimtab.core.incidents import IncidentClass

ONSET, STEPS = 300, 600
SIGMA = 0.2
AFTER = np.arange(STEPS - ONSET)


def twin_loss(seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, SIGMA, STEPS)
    return 5.0 - 0.002 * np.arange(STEPS) + noise


def class_of(excess: np.ndarray, *, norm: float = 1.0) -> IncidentClass | None:
    """The class of a run whose loss has this excess over its twin, and with this norm."""
    twin = {"loss": twin_loss(), "param_norm": np.full(STEPS, 1.0)}
    run = {name: values.copy() for name, values in twin.items()}
    run["loss"][ONSET:] += excess
    run["param_norm"][ONSET:] *= norm
    return true_class(Pair(block_of(run), block_of(twin), ONSET))


def spike(height: float, steps: float) -> np.ndarray:
    return np.where(steps > AFTER, height, 0.0)


@pytest.mark.parametrize(
    ("excess", "expected"),
    [
        (spike(1.5, 1), IncidentClass.RECOVERED),
        (spike(0.5, 60), IncidentClass.RECOVERED),
        (spike(0.5, 140), IncidentClass.LINGERING),
        (spike(0.5, 1000), IncidentClass.LINGERING),
        (2.0 - 0.001 * AFTER, IncidentClass.LINGERING),  # falls with the twin, and faster
        (2.0 + 0.002 * AFTER, IncidentClass.DIVERGENT),  # stands where it jumped to
        (0.01 * AFTER, IncidentClass.DIVERGENT),
        (0.3 + 0.002 * AFTER, IncidentClass.PLATEAU),
        (np.where(AFTER < 50, 0.5, np.nan), IncidentClass.DEAD),
        (-spike(2.0, 1000), IncidentClass.SILENT),  # below the twin: no damage, but not the same
    ],
)
def test_the_class_follows_the_excess(excess: np.ndarray, expected: IncidentClass) -> None:
    assert class_of(excess) is expected


def test_an_excess_within_the_noise_is_silent_if_another_signal_left() -> None:
    assert class_of(spike(0.5 * SIGMA, 1000), norm=1.5) is IncidentClass.SILENT
    assert class_of(spike(0.5 * SIGMA, 1000)) is None
    assert class_of(np.zeros(STEPS - ONSET)) is None


def test_silence_is_counted_from_the_alarm_on() -> None:
    twin = {"loss": twin_loss(), "param_norm": np.full(STEPS, 1.0)}
    run = {name: values.copy() for name, values in twin.items()}
    run["loss"][ONSET + 150 :] += 0.5
    run["param_norm"][ONSET:] *= 1.5
    pair = Pair(block_of(run), block_of(twin), ONSET)
    assert true_class(pair, alarm=ONSET + 5) is IncidentClass.SILENT
    assert true_class(pair, alarm=ONSET + 100) is IncidentClass.LINGERING


def test_a_loss_that_leaves_late_was_silent_before() -> None:
    late = np.where(AFTER > 150, 0.5, 0.0)
    assert class_of(late, norm=1.5) is IncidentClass.SILENT


def test_different_data_is_not_an_excess() -> None:
    other = twin_loss(seed=1) - twin_loss()
    assert class_of(other[ONSET:], norm=1.5) is IncidentClass.SILENT


def test_a_fault_from_the_first_step_on_has_no_level_before_it() -> None:
    twin = twin_loss()
    run = twin + 0.004 * np.arange(STEPS)
    pair = Pair(block_of({"loss": run}), block_of({"loss": twin}), 0)
    assert true_class(pair) is IncidentClass.DIVERGENT
    run = twin + 0.002 * np.arange(STEPS)
    pair = Pair(block_of({"loss": run}), block_of({"loss": twin}), 0)
    assert true_class(pair) is IncidentClass.PLATEAU
