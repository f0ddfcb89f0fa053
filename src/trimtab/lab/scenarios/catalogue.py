"""The registry: every intervention by the name that users type.

FAULTS     the catalogue, by number; to add a fault, write its file and add one line here
NATURAL    settings at which a small model is unstable without an injected fault
HARMLESS   hard negatives: they look like a fault and are not
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trimtab.core.errors import ConfigError
from trimtab.lab.faults import data_faults, harmless, machine_faults, training_faults
from trimtab.lab.trainer.intervention import Intervention

Kind = type[Intervention]

FAULTS: Mapping[str, Kind] = MappingProxyType(
    {
        "F01": data_faults.HardBatch,
        "F02": data_faults.DegenerateTokens,
        "F03": data_faults.DuplicateBatch,
        "F04": data_faults.MixShift,
        "F05": training_faults.RateJump,
        "F06": training_faults.StateLost,
        "F07": training_faults.StaleMoment,
        "F08": training_faults.LargeEpsilon,
        "F09": training_faults.AttentionGrowth,
        "F10": training_faults.OutputDrift,
        "F11": training_faults.Fp16Overflow,
        "F12": training_faults.LogicNan,
        "F13": machine_faults.GradientBitFlip,
        "F13w": machine_faults.WeightBitFlip,
        "F14": machine_faults.BadDevice,
        "F15": machine_faults.OutOfSync,
        "F16": machine_faults.LoaderStall,
        "F17": machine_faults.SlowRank,
        "F18": machine_faults.WrongWeights,
        "F18d": machine_faults.WrongPosition,
        "F19": training_faults.Frozen,
        "F20": data_faults.SmallerBatch,
        "F21": training_faults.RateTooHigh,
        "F22": training_faults.LossReduction,
        "F23": training_faults.StrongDecay,
        "F24": training_faults.WrongSchedule,
    }
)
"""The fault catalogue; a letter after the number marks a second way to cause the same fault."""

NATURAL: Mapping[str, Kind] = MappingProxyType(
    {
        "natural-attention": training_faults.AttentionCollapse,
        "natural-post-norm": training_faults.PostNorm,
        "natural-init": training_faults.WideInit,
        "natural-warmup": training_faults.NoWarmup,
        "natural-fp16": training_faults.Fp16Spiral,
    }
)

HARMLESS: Mapping[str, Kind] = MappingProxyType(
    {
        "cooldown": harmless.Cooldown,
        "warmup-end": harmless.LateWarmup,
        "batch-ramp": harmless.BatchRamp,
        "length-change": harmless.LongerSequences,
        "mix-switch": harmless.PlannedMix,
        "evaluation": harmless.LongEvaluation,
        "right-resume": harmless.RightResume,
    }
)

CLEAN = "clean"
"""The name of a run without any intervention."""

KINDS: Mapping[str, Kind] = MappingProxyType({**FAULTS, **NATURAL, **HARMLESS})


def kind_named(name: str) -> Kind:
    """Return the intervention with this name; raises ConfigError if the name is unknown."""
    if name not in KINDS:
        names = {known.lower(): known for known in KINDS}
        close = [names[match] for match in difflib.get_close_matches(name.lower(), names)]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(f"unknown kind {name!r}; {hint}`trimtab lab list` shows all kinds")
    return KINDS[name]


_ONSET = 300
_SEEDS = range(20)
"""Enough to find the shortest and the longest duration that a kind draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One kind in a line."""

    title: str
    strengths: str
    """The strengths at severity 0 and severity 1."""
    lasts: str
    base: str
    """The kind of run that it needs."""


def describe_kind(kind: Kind) -> Description:
    """Return what a kind does, how strongly, and for how long."""
    mild, severe = (
        [kind(onset=_ONSET, severity=severity, seed=seed) for seed in _SEEDS]
        for severity in (0.0, 1.0)
    )
    low, high = f"{mild[0].strength:.3g}", f"{severe[0].strength:.3g}"
    spread = low if low == high else f"{low} to {high}"
    spans = sorted({one.steps for one in (*mild, *severe) if one.steps is not None})
    return Description(
        title=kind.title,
        strengths=f"{spread} {kind.strength_name}",
        lasts="the whole run" if kind.from_start else _span(spans),
        base=kind.base,
    )


def _span(steps: list[int]) -> str:
    if not steps:
        return "until the end"
    first, last = steps[0], steps[-1]
    if first != last:
        return f"{first} to {last} steps"
    return "1 step" if last == 1 else f"{last} steps"
