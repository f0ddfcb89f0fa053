"""The coordinate check and the range test on the lab's GPT, with muP and without."""

import math

import pytest
import torch
from rich.console import Console
from tests.kit.check_objects.widths import make_at_width

from trimtab.checks.objects.learning_rate import (
    CoordinateCheck,
    LrRange,
    coordinate_check,
    coordinates_view,
    lr_range_test,
    parse_widths,
)
from trimtab.core.errors import ConfigError


@pytest.fixture(scope="module")
def checks() -> dict[bool, CoordinateCheck]:
    return {
        is_mup: coordinate_check(make_at_width(is_mup=is_mup), [64, 128, 256])
        for is_mup in (True, False)
    }


def test_a_correct_parametrisation_is_stable_and_a_wrong_one_is_not(
    checks: dict[bool, CoordinateCheck],
) -> None:
    assert checks[True].is_stable
    assert "can be used at the others" in checks[True].advice
    assert not checks[False].is_stable
    assert checks[False].worst.slope > 0.5
    assert "divide the rate of hidden matrices" in checks[False].advice


def test_the_result_and_its_table_name_the_widths(checks: dict[bool, CoordinateCheck]) -> None:
    console = Console(width=200)
    with console.capture() as printed:
        console.print(coordinates_view(checks[False]))
    assert "width 256" in printed.get()
    assert "not stable" in printed.get()
    assert checks[True].to_dict()["widths"] == [64, 128, 256]


def test_widths_are_whole_numbers_and_more_than_one() -> None:
    assert parse_widths("64,128") == [64, 128]
    with pytest.raises(ConfigError, match="whole numbers"):
        parse_widths("64,wide")
    with pytest.raises(ConfigError, match="two or more"):
        coordinate_check(make_at_width(is_mup=True), [64])


def test_the_range_test_stops_at_an_alarm_and_advises_a_lower_rate() -> None:
    setup = make_at_width(is_mup=False)(64)
    before = [p.detach().clone() for p in setup["model"].parameters()]
    found = lr_range_test(**setup, lowest=1e-4, num_steps=60)
    assert found.highest is not None
    assert "no alarm" not in found.stop
    assert found.advised is not None
    assert 1e-4 < found.advised < 0.1
    assert all(map(torch.equal, before, setup["model"].parameters()))


def test_a_loss_that_is_not_finite_never_counts_as_low() -> None:
    found = LrRange(
        rates=(1e-3, 1e-2, 1e-1), losses=(2.0, 1.0, math.nan), stop="non-finite loss", highest=1e-1
    )
    assert found.turning == 1e-2
    assert found.to_dict()["losses"][-1] is None
