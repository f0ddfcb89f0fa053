"""stabilityguard: a gradient norm at ten times its moving average.

It watches the norm of every layer; a log has only the norm of the whole, which is what it is given.
"""

import importlib
import math
from typing import Any

from benchmarks.detect.contenders import Contender, Stepwise
from benchmarks.detect.peers.packages import Absent, installed

NAME = "stabilityguard"


def stabilityguard_contenders() -> list[Contender]:
    """Its detector, by its own code."""
    package = installed("stabilityguard")
    return [Stepwise(name=NAME, start=_Package, source=package) if package else Absent(name=NAME)]


class _Package:
    def __init__(self) -> None:
        module = importlib.import_module("stabilityguard.core.spike_detector")
        self._detector: Any = module.SpikeDetector()

    def see(self, loss: float, norm: float | None) -> bool:
        if norm is None:
            return False
        bad = set() if math.isfinite(norm) else {"all"}
        return bool(self._detector.check({"all": norm}, bad)[0])
