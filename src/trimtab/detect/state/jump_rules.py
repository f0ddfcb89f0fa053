"""What a jump of each signal means, and how large it has to be.

The figures above a rule are the largest changes in 484 healthy runs of the lab, in units of the
largest of the 128 changes before each.
"""

from dataclasses import dataclass
from functools import cache

from trimtab.core.findings import Symptom
from trimtab.core.signals import (
    ACTIVATION_RMS,
    ADAM_M_NORM,
    ADAM_V_NORM,
    LR,
    PARAM_NORM,
    SHIFT_SHARE,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
    UPDATE_NORM,
)
from trimtab.detect.loss.norm_spike import HUGE_RATIO
from trimtab.detect.tools.jump_test import JumpLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpRule:
    """What a jump of one signal means."""

    limits: JumpLimits
    up: Symptom
    down: Symptom
    falls_harmlessly: bool = False
    """Whether a fall is only a warning."""
    by_rate: bool = False
    """Whether the value is divided by the learning rate first."""
    may_step_back: bool = True
    """Whether a new attempt starts at an older value."""
    min_value: float = 0.0
    """Smaller values count as this: for shares, which may be 0."""


def _update_rule(*, down: float, floor: float = 0.1) -> JumpRule:
    return JumpRule(
        limits=JumpLimits(up=14.0, down=down, floor=floor),
        up=Symptom.UPDATE_SPIKE,
        down=Symptom.UPDATE_SHIFT,
        by_rate=True,
    )


RULES = {
    # 1.7 up, 1.1 down.
    PARAM_NORM: JumpRule(
        limits=JumpLimits(up=2.0, down=2.0, floor=1e-3),
        up=Symptom.NORM_DRIFT,
        down=Symptom.NORM_DRIFT,
    ),
    # Of a group, 12 up: a batch can do that; rare tokens raise the embedding's 16 times. 3.1 down,
    # in the few weights of the norms after a batch of 64 tokens. Noise with a heavy tail (t with 5
    # degrees) falls by 3 times its largest change once in 45,000 records.
    f"{UPDATE_NORM}/": _update_rule(down=4.0),
    # 7.1 down, but then by a sixth: its updates are those of a few rows, and one batch can turn
    # them around. A large epsilon makes it fall by 6 to 18 times, and by a fifth or more.
    f"{UPDATE_NORM}/embedding": _update_rule(down=7.0, floor=0.2),
    # 3.6 down: the embedding is its largest part.
    UPDATE_NORM: _update_rule(down=7.0, floor=0.2),
    # 151 up, 394 after a row of one repeated token. v rises by (1 - beta2) g^2, so one gradient
    # that is 30 times the largest before raises it 900 times: the limit of a huge gradient norm,
    # squared. 1.4 down: v falls by 1 - beta2 at most, unless something else wrote it.
    ADAM_V_NORM: JumpRule(
        limits=JumpLimits(up=HUGE_RATIO**2, down=2.0, floor=0.02),
        up=Symptom.GRADIENT_SPIKE,
        down=Symptom.STATE_LOST,
    ),
    # 4.4 down: one gradient against the momentum can do that, so only v shows that state is lost.
    # Up as v.
    ADAM_M_NORM: JumpRule(
        limits=JumpLimits(up=None, down=2.5, floor=0.1),
        up=Symptom.GRADIENT_SPIKE,
        down=Symptom.STATE_LOST,
        falls_harmlessly=True,
    ),
    # 3.1 up, 2.8 down; 4.5 finds as many faults as 3.5.
    ACTIVATION_RMS: JumpRule(
        limits=JumpLimits(up=4.5, down=4.5, floor=0.05),
        up=Symptom.ACTIVATION_JUMP,
        down=Symptom.ACTIVATION_JUMP,
    ),
    # 4.2 up; 6.5 finds as many faults as 5. A fall means easier text.
    TOKEN_RARITY: JumpRule(
        limits=JumpLimits(up=6.5, down=None, floor=0.05),
        up=Symptom.ODD_TOKENS,
        down=Symptom.ODD_TOKENS,
        may_step_back=False,
    ),
    # 2.4 down, apart from a change of the batches that is known and from a batch that is one token;
    # 4 finds as many faults as 2.5.
    UNIQUE_TOKEN_SHARE: JumpRule(
        limits=JumpLimits(up=None, down=4.0, floor=0.05),
        up=Symptom.ODD_TOKENS,
        down=Symptom.ODD_TOKENS,
        may_step_back=False,
    ),
    # 1 in every batch, or a different constant: the floor decides.
    SHIFT_SHARE: JumpRule(
        limits=JumpLimits(up=2.0, down=2.0, floor=0.25),
        up=Symptom.ODD_TOKENS,
        down=Symptom.ODD_TOKENS,
        may_step_back=False,
        min_value=1e-3,
    ),
    # A smooth curve or a constant: the floor decides. A step down is a common schedule.
    LR: JumpRule(
        limits=JumpLimits(up=4.0, down=4.0, floor=0.5),
        up=Symptom.LR_JUMP,
        down=Symptom.LR_JUMP,
        falls_harmlessly=True,
    ),
}
"""By signal, by the prefix of the signals of groups, or by the signal that they belong to."""


@cache
def rule_of(name: str) -> JumpRule | None:
    """The rule for a signal or for a group of it; None if it has no rule."""
    head, slash, _ = name.partition("/")
    return RULES.get(name) or RULES.get(head + slash) or RULES.get(head)
