"""trainpulse: a loss at five times its mean, a norm over 100 or under 1e-7, NaN.

Its notice of a plateau (100 steps without a new lowest loss) is not counted: on the loss of single
batches it comes all the time and says nothing of trouble.
"""

import importlib
from typing import Any

from benchmarks.detect.contenders import Contender, Stepwise
from benchmarks.detect.peers.packages import Absent, installed

NAME = "trainpulse"


def trainpulse_contenders() -> list[Contender]:
    """Its detectors, by its own code."""
    package = installed("trainpulse")
    return [Stepwise(name=NAME, start=_Package, source=package) if package else Absent(name=NAME)]


class _Package:
    def __init__(self) -> None:
        module: Any = importlib.import_module("trainpulse.detectors")
        self._nan, self._loss = module.NaNDetector(), module.LossSpikeDetector()
        self._norm = module.GradientDetector()
        self._row = -1

    def see(self, loss: float, norm: float | None) -> bool:
        self._row += 1
        alerts = [self._nan.check(self._row, "loss", loss), self._loss.check(self._row, loss)]
        if norm is not None:
            alerts.append(self._nan.check(self._row, "grad_norm", norm))
            alerts.append(self._norm.check(self._row, norm))
        return any(alert is not None for alert in alerts)
