"""The other detectors of the field, one file per family."""

from benchmarks.detect.contenders import Contender
from benchmarks.detect.peers.lightning import lightning_contender
from benchmarks.detect.peers.olmo_core import olmo_core_contender
from benchmarks.detect.peers.published import published_rules
from benchmarks.detect.peers.zclip import zclip_contender


def peer_contenders() -> list[Contender]:
    return [
        *published_rules(),
        olmo_core_contender(),
        lightning_contender(),
        zclip_contender(),
    ]
