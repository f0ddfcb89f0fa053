"""The registry: every intervention by the name that users type.

FAULTS     the catalogue, by number; to add a fault, write its file and add one line here
NATURAL    settings at which a small model is unstable without an injected fault
HARMLESS   hard negatives: they look like a fault and are not
"""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from trimtab.core.errors import ConfigError
from trimtab.lab.faults import natural
from trimtab.lab.faults.data.f01_hard_batch import HardBatch
from trimtab.lab.faults.data.f02_degenerate_tokens import DegenerateTokens
from trimtab.lab.faults.data.f03_duplicate_batch import DuplicateBatch
from trimtab.lab.faults.data.f04_mix_shift import MixShift
from trimtab.lab.faults.data.f20_batch_change import SmallerBatch
from trimtab.lab.faults.machine.f13_bit_flip import GradientBitFlip, WeightBitFlip
from trimtab.lab.faults.machine.f14_bad_device import BadDevice
from trimtab.lab.faults.machine.f15_out_of_sync import OutOfSync
from trimtab.lab.faults.machine.f16_loader_stall import LoaderStall
from trimtab.lab.faults.machine.f17_slow_rank import SlowRank
from trimtab.lab.faults.machine.f18_wrong_resume import WrongPosition, WrongWeights
from trimtab.lab.faults.numerics.f09_attention_growth import AttentionGrowth
from trimtab.lab.faults.numerics.f10_output_drift import OutputDrift
from trimtab.lab.faults.numerics.f11_fp16_overflow import Fp16Overflow
from trimtab.lab.faults.numerics.f12_logic_nan import LogicNan
from trimtab.lab.faults.numerics.f22_loss_reduction import LossReduction
from trimtab.lab.faults.optimizer.f05_rate_jump import RateJump
from trimtab.lab.faults.optimizer.f06_state_lost import StateLost
from trimtab.lab.faults.optimizer.f07_stale_moment import StaleMoment
from trimtab.lab.faults.optimizer.f08_epsilon import LargeEpsilon
from trimtab.lab.faults.optimizer.f19_frozen import Frozen
from trimtab.lab.faults.optimizer.f21_rate_too_high import RateTooHigh
from trimtab.lab.faults.optimizer.f23_weight_decay import StrongDecay
from trimtab.lab.faults.optimizer.f24_wrong_schedule import WrongSchedule
from trimtab.lab.harmless.batches import BatchRamp, LongerSequences, PlannedMix
from trimtab.lab.harmless.pauses import LongEvaluation, RightResume
from trimtab.lab.harmless.schedules import Cooldown, LateWarmup
from trimtab.lab.trainer.intervention import Intervention

Kind = type[Intervention]

FAULTS: Mapping[str, Kind] = MappingProxyType(
    {
        "F01": HardBatch,
        "F02": DegenerateTokens,
        "F03": DuplicateBatch,
        "F04": MixShift,
        "F05": RateJump,
        "F06": StateLost,
        "F07": StaleMoment,
        "F08": LargeEpsilon,
        "F09": AttentionGrowth,
        "F10": OutputDrift,
        "F11": Fp16Overflow,
        "F12": LogicNan,
        "F13": GradientBitFlip,
        "F13w": WeightBitFlip,
        "F14": BadDevice,
        "F15": OutOfSync,
        "F16": LoaderStall,
        "F17": SlowRank,
        "F18": WrongWeights,
        "F18d": WrongPosition,
        "F19": Frozen,
        "F20": SmallerBatch,
        "F21": RateTooHigh,
        "F22": LossReduction,
        "F23": StrongDecay,
        "F24": WrongSchedule,
    }
)
"""The fault catalogue; a letter after the number marks a second way to cause the same fault."""

NATURAL: Mapping[str, Kind] = MappingProxyType(
    {
        "natural-attention": natural.AttentionCollapse,
        "natural-post-norm": natural.PostNorm,
        "natural-init": natural.WideInit,
        "natural-warmup": natural.NoWarmup,
        "natural-fp16": natural.Fp16Spiral,
    }
)

HARMLESS: Mapping[str, Kind] = MappingProxyType(
    {
        "cooldown": Cooldown,
        "warmup-end": LateWarmup,
        "batch-ramp": BatchRamp,
        "length-change": LongerSequences,
        "mix-switch": PlannedMix,
        "evaluation": LongEvaluation,
        "right-resume": RightResume,
    }
)

CLEAN = "clean"
"""The name of a run without any intervention."""

KINDS: Mapping[str, Kind] = MappingProxyType({**FAULTS, **NATURAL, **HARMLESS})


def kind_named(name: str) -> Kind:
    """The intervention with this name; raises ConfigError if the name is unknown."""
    if name not in KINDS:
        names = {known.lower(): known for known in KINDS}
        close = [names[match] for match in difflib.get_close_matches(name.lower(), names)]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(f"unknown kind {name!r}; {hint}`trimtab lab list` shows all kinds")
    return KINDS[name]
