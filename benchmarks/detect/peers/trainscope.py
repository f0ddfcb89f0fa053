"""trainscope: a two-sided CUSUM of the loss's robust z-score, its default detector."""

import importlib
import math
from typing import Any

from benchmarks.detect.contenders import Contender, Stepwise
from benchmarks.detect.peers.packages import Absent, installed

NAME = "trainscope CUSUM"


def trainscope_contenders() -> list[Contender]:
    """Its detector, by its own code."""
    package = installed("trainscope")
    return [Stepwise(name=NAME, start=_Package, source=package) if package else Absent(name=NAME)]


class _Package:
    def __init__(self) -> None:
        detectors = importlib.import_module("trainscope.core.detectors")
        self._detector: Any = detectors.make_detector({"name": "changepoint"})

    def see(self, loss: float, norm: float | None) -> bool:
        if not math.isfinite(loss):
            return False  # its scope keeps such losses from the detector
        return self._detector.update(loss) is not None
