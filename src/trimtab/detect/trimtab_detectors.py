"""The detectors of trimtab's rules."""

from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.detect.loss.loss_detectors import LossDetectors
from trimtab.detect.loss.without_baseline import GrossLoss, NoLearning, ResumeGap
from trimtab.detect.reference import Reference
from trimtab.detect.resume.audit import ResumeAudit
from trimtab.detect.run.progress import Counters, LrSchedule, RepeatedBatch
from trimtab.detect.run.throughput import Throughput
from trimtab.detect.run.token_mix import MixShift, TokenMix
from trimtab.detect.state.hard_limits import AttentionLogits, Frozen, LossScale, NonFinite
from trimtab.detect.state.jumps import StateJumps
from trimtab.detect.state.norm_trend import NormTrend


def trimtab_detectors(config: Config) -> list[Detector]:
    """Create the detectors of one run, in the order in which they report."""
    return [
        ResumeAudit(),
        NonFinite(),
        LossDetectors(config.detect.threshold_scale),
        GrossLoss(),
        Reference(),
        Counters(),
        RepeatedBatch(),
        StateJumps(),
        NormTrend(),
        LrSchedule(),
        Frozen(),
        LossScale(),
        Throughput(),
        ResumeGap(),
        TokenMix(),
        MixShift(),
        AttentionLogits(),
        NoLearning(),
    ]
