"""OLMo-core: 6 deviations over the last 128, on the loss or the norm, in two places."""

import importlib
from typing import Any

from benchmarks.detect.contenders import ArrayRule, Contender, Stepwise
from benchmarks.detect.peers.packages import Absent, checked_source, installed
from benchmarks.detect.peers.trailing import trailing
from trimtab.core.block import BoolArray, FloatArray

SKIP, MONITOR = "OLMo-core SkipStep 6 sigma / 128", "OLMo-core StabilityMonitor"
WINDOW, LEAST, SIGMAS = 128, 63, 6.0


def olmo_core_contenders() -> list[Contender]:
    """The optimizer that skips steps and the callback that counts spikes."""
    rule = ArrayRule(name=SKIP, rule=_skips, memory=WINDOW)
    package = installed("ai2-olmo-core")
    if package is None:
        return [rule, Absent(name=MONITOR)]
    own_code = Stepwise(name=SKIP, start=_SkipStep, source=package)
    source = checked_source(rule, own_code)  # its own code takes 0.2 ms a point
    return [
        ArrayRule(name=SKIP, rule=_skips, memory=WINDOW, source=source),
        Stepwise(name=MONITOR, start=_Monitor, source=package),
    ]


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


class _Monitor:
    def __init__(self) -> None:
        module = importlib.import_module("olmo_core.train.callbacks.stability_monitor")
        self._callback: Any = module.StabilityMonitorCallback()
        self._row = -1

    def see(self, loss: float, norm: float | None) -> bool:
        self._row += 1
        metrics = {self._callback.loss_metric_name: loss}
        if norm is not None:
            metrics[self._callback.grad_norm_metric_name] = norm
        before = self._callback.state_dict()["total_spike_count"]
        self._callback.pre_log_metrics(self._row, metrics)
        return bool(self._callback.state_dict()["total_spike_count"] > before)
