"""Lightning's SpikeDetection: a loss at three times the mean of the last ten good ones."""

import importlib
import math
from collections import deque
from typing import Any

from benchmarks.detect.contenders import Contender, Stepwise
from benchmarks.detect.peers.packages import checked

NAME = "Lightning SpikeDetection"
WINDOW, TIMES = 10, 2.0


def lightning_contender() -> Contender:
    """Its rule; checked against the package, whose own code takes 0.4 ms a point."""
    return checked(Stepwise(name=NAME, start=_Rule), "lightning", _Package)


class _Rule:
    def __init__(self) -> None:
        self._good: deque[float] = deque(maxlen=WINDOW)
        self._last = 0.0

    def see(self, loss: float, norm: float | None) -> bool:
        if self._good and self._is_spike(loss):
            return True
        self._good.append(loss)
        self._last = loss
        return False

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        mean = sum(self._good) / len(self._good)
        return loss > self._last and abs(loss - mean) >= abs(TIMES * mean)


class _Strategy:
    """What SpikeDetection asks of a strategy, for one process."""

    def __init__(self, device: Any) -> None:
        self.root_device = device

    def barrier(self) -> None:
        """Nobody to wait for."""

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return decision


class _Fabric:
    global_rank = 1  # only rank 0 writes the file of batches to skip

    def __init__(self, device: Any) -> None:
        self.strategy = _Strategy(device)


class _Package:
    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._spike: Any = importlib.import_module("lightning.fabric.utilities.spike")
        self._detection = self._spike.SpikeDetection()
        self._fabric = _Fabric(self._torch.device("cpu"))
        self._batch = -1

    def see(self, loss: float, norm: float | None) -> bool:
        self._batch += 1
        value = self._torch.tensor(loss, dtype=self._torch.float64)
        try:
            self._detection.on_train_batch_end(self._fabric, value, None, self._batch)
        except self._spike.TrainingSpikeException:
            return True
        return False
