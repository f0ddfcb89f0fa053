"""What trimtab's own policy says to incidents that the loss does not show."""

import pytest
from tests.synthetic import diagnosis_of

from trimtab.core.actions import ActionKind
from trimtab.core.findings import Symptom
from trimtab.policy import own


@pytest.mark.parametrize("recurs", [False, True])
def test_what_only_costs_time_is_waited_for(recurs: bool) -> None:
    assert own.advise(diagnosis_of(Symptom.STALL), recurs=recurs).kind is ActionKind.WAIT


def test_what_goes_into_the_weights_is_rolled_back() -> None:
    action = own.advise(diagnosis_of(Symptom.STATE_LOST), recurs=False)
    assert action.kind is ActionKind.ROLL_BACK
    assert "300" in action.instruction


def test_what_comes_back_asks_for_a_lower_rate() -> None:
    action = own.advise(diagnosis_of(Symptom.NORM_DRIFT), recurs=True)
    assert action.kind is ActionKind.LOWER_LR
