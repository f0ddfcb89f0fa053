"""Cells that leave their range, and the norms and token statistics that are made into cells."""

import numpy as np
import pytest
from tests.detect.feeding import alarms, at, block

from trimtab.core.findings import Symptom
from trimtab.detect.run.token_mix import TokenMix
from trimtab.detect.state.norm_trend import NormTrend
from trimtab.detect.tools.range_test import Outside, Span

SPAN = Span(before=6, newest=2, widths=0.5)


def strays(cells: list[float], span: Span = SPAN) -> list[int]:
    single, many = Outside(span), Outside(span)
    one_by_one = [at for at, cell in enumerate(cells) if single.take(cell) is not None]
    assert [at for at, _ in many.sweep(np.array(cells))] == one_by_one
    assert single.state_dict() == many.state_dict()
    return one_by_one


def test_all_newest_must_be_far_enough_outside() -> None:
    usual = [1.0, 2.0, 1.5, 1.2, 1.8, 1.4]
    assert strays([*usual, 3.0, 3.0]) == [7]
    assert strays([*usual, 0.0, 0.0]) == [7]
    assert strays([*usual, 3.0, 1.5]) == []
    assert strays([*usual, 2.4, 2.4]) == []
    assert strays([*usual, 0.0, 0.0], Span(before=6, newest=2, downwards=False)) == []


def test_the_new_range_becomes_the_normal() -> None:
    usual = [1.0, 2.0, 1.5, 1.2, 1.8, 1.4]
    assert strays([*usual, *([9.0, 9.1] * 20)]) == [7]


def test_a_constant_has_no_range_to_leave() -> None:
    assert strays([1.0] * 6 + [5.0] * 20) == []


def test_chance_is_as_small_as_it_was_counted() -> None:
    cells = np.random.default_rng(0).normal(size=100_000)
    found = list(Outside(Span(before=24, newest=6)).sweep(cells))
    assert len(found) <= 2


LENGTH, AT = 400, 240


def norms(growth: float, rate: np.ndarray) -> np.ndarray:
    draw = np.random.default_rng(0)
    slope = np.where(np.arange(LENGTH) < AT, 1.0, growth)
    return np.asarray(np.exp(np.cumsum(rate * (slope + 0.2 * draw.normal(size=LENGTH)))))


@pytest.mark.parametrize("growth", [4.0, -3.0])
def test_a_norm_that_grows_or_shrinks_faster_is_told_once(growth: float) -> None:
    rate = np.full(LENGTH, 1e-3)
    run = block(LENGTH, **{"param_norm/attention": norms(growth, rate), "lr": rate})
    (alarm,) = alarms(NormTrend, run)
    assert alarm.symptom is Symptom.NORM_DRIFT
    assert AT < alarm.step <= AT + 32


def test_growth_that_follows_the_rate_is_none() -> None:
    rate = 1e-3 * np.minimum(1.0, np.arange(1, LENGTH + 1) / 300)
    run = block(LENGTH, **{"param_norm/attention": norms(1.0, rate), "lr": rate})
    assert alarms(NormTrend, run) == []


def test_a_mix_of_other_tokens_is_told_unless_it_was_planned() -> None:
    share = np.random.default_rng(1).normal(0.4, 0.02, LENGTH)
    share[AT:] -= 0.1
    (alarm,) = alarms(TokenMix, block(LENGTH, unique_token_share=share))
    assert alarm.symptom is Symptom.ODD_TOKENS
    planned = block(LENGTH, unique_token_share=share, events=[at("planned change", AT)])
    assert alarms(TokenMix, planned) == []
