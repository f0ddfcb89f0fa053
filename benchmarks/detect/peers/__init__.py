"""The other detectors of the field, one file per family."""

from benchmarks.detect.contenders import Contender
from benchmarks.detect.peers.lightning import lightning_contenders
from benchmarks.detect.peers.olmo_core import olmo_core_contenders
from benchmarks.detect.peers.published import published_rules
from benchmarks.detect.peers.stabilityguard import stabilityguard_contenders
from benchmarks.detect.peers.trainpulse import trainpulse_contenders
from benchmarks.detect.peers.trainscope import trainscope_contenders
from benchmarks.detect.peers.zclip import zclip_contenders


def peer_contenders() -> list[Contender]:
    """Every peer; one whose package is needed and not installed has a row without figures."""
    return [
        *published_rules(),
        *olmo_core_contenders(),
        *lightning_contenders(),
        *zclip_contenders(),
        *trainscope_contenders(),
        *stabilityguard_contenders(),
        *trainpulse_contenders(),
    ]
