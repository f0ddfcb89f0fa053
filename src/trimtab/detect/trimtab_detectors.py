"""The detectors of trimtab's rules."""

from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.detect.loss.loss_detectors import LossDetectors
from trimtab.detect.loss.without_baseline import GrossLoss, NoLearning, ResumeGap
from trimtab.detect.reference import Reference
from trimtab.detect.run.fine_tuning import HeldOut, NoTargets
from trimtab.detect.run.policy import PolicySignals
from trimtab.detect.run.progress import CounterOrder, LrSchedule, RepeatedBatches
from trimtab.detect.run.throughput import Throughput
from trimtab.detect.run.token_mix import TokenMix, TokenMixShift
from trimtab.detect.state.hard_limits import (
    AttentionLogits,
    Experts,
    FrozenUpdates,
    HarmedState,
    LossScale,
    NonFinite,
    Replicas,
    ResumeAudit,
)
from trimtab.detect.state.jumps import StateJumps
from trimtab.detect.state.norm_trend import NormTrend


def trimtab_detectors(config: Config) -> list[Detector]:
    """Create the detectors of one run, in the order in which they report."""
    return [
        ResumeAudit(),
        HarmedState(),
        Replicas(),
        NonFinite(),
        NoTargets(),
        LossDetectors(config.detect.threshold_scale, config.detect.objective),
        GrossLoss(config.detect.objective),
        Reference(),
        CounterOrder(),
        RepeatedBatches(),
        StateJumps(),
        NormTrend(),
        LrSchedule(),
        FrozenUpdates(),
        LossScale(),
        PolicySignals(),
        HeldOut(),
        Throughput(),
        ResumeGap(),
        TokenMix(),
        TokenMixShift(),
        AttentionLogits(),
        Experts(),
        NoLearning(),
    ]
