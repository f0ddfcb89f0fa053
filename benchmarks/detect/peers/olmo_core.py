"""OLMo-core skips a step 6 deviations over the last 128, of the loss or of the norm."""

import importlib
from typing import Any

from benchmarks.detect.contenders import ArrayRule, Contender
from benchmarks.detect.peers.packages import checked
from benchmarks.detect.peers.trailing import trailing
from trimtab.core.block import BoolArray, FloatArray

SKIP = "OLMo-core SkipStep 6 sigma / 128"
WINDOW, LEAST, SIGMAS = 128, 63, 6.0


def olmo_core_contender() -> Contender:
    """The optimizer's rule; checked against the package, whose own code takes 0.2 ms a point."""
    rule = ArrayRule(name=SKIP, rule=_skips, memory=WINDOW)
    return checked(rule, "ai2-olmo-core", _SkipStep)


def _skips(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
    keeps = _keeps(loss) if norm is None else _keeps(loss) & _keeps(norm)
    skips: BoolArray = ~keeps
    skips[:LEAST] = False
    return skips


def _keeps(values: FloatArray) -> BoolArray:
    """A NaN in the window keeps nothing: every comparison with it is false."""
    mean, deviation = trailing(values, WINDOW, least=LEAST, ddof=1)
    keeps: BoolArray = values - mean <= SIGMAS * deviation
    return keeps


class _SkipStep:
    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        module = importlib.import_module("olmo_core.optim.skip_step_optimizer")
        self._optimizer = module.SkipStepOptimizer([self._torch.zeros(1)], {})

    def see(self, loss: float, norm: float | None) -> bool:
        self._optimizer.latest_loss = self._torch.tensor(loss, dtype=self._torch.float64)
        if norm is not None:
            self._optimizer.latest_grad_norm = self._torch.tensor(norm, dtype=self._torch.float64)
        return bool(self._optimizer.get_step_factor().item() == 0)
