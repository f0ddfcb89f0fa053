"""The detectors of trimtab's rules."""

from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.detect.loss.gross_loss import GrossLoss
from trimtab.detect.loss.loss_detectors import LossDetectors
from trimtab.detect.loss.no_learning import NoLearning
from trimtab.detect.loss.resume_gap import ResumeGap
from trimtab.detect.reference.reference import Reference
from trimtab.detect.resume.resume_audit import ResumeAudit
from trimtab.detect.run.counters import Counters
from trimtab.detect.run.lr_schedule import LrSchedule
from trimtab.detect.run.mix_shift import MixShift
from trimtab.detect.run.repeated_batch import RepeatedBatch
from trimtab.detect.run.throughput import Throughput
from trimtab.detect.run.token_mix import TokenMix
from trimtab.detect.state.attention_logits import AttentionLogits
from trimtab.detect.state.frozen import Frozen
from trimtab.detect.state.loss_scale import LossScale
from trimtab.detect.state.nonfinite import NonFinite
from trimtab.detect.state.norm_trend import NormTrend
from trimtab.detect.state.state_jumps import StateJumps


def trimtab_detectors(config: Config) -> list[Detector]:
    """New detectors for one run, in the order in which they report."""
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
