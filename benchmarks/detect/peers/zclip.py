"""ZClip clips a gradient norm 2.5 deviations over its moving average; that is its alarm."""

import importlib
import math
from typing import Any

from benchmarks.detect.contenders import Contender, Stepwise
from benchmarks.detect.peers.packages import checked

NAME = "ZClip trigger"
ALPHA, SIGMAS, WARMUP, EPSILON = 0.97, 2.5, 25, 1e-6


def zclip_contender() -> Contender:
    """Its rule; checked against the package, which needs a model to clip."""
    return checked(Stepwise(name=NAME, start=_Rule), "zclip", _Package)


class _Rule:
    def __init__(self) -> None:
        self._warmup: list[float] = []
        self._mean: float = 0.0
        self._variance: float = 0.0

    def see(self, loss: float, norm: float | None) -> bool:
        if norm is None:
            return False
        if len(self._warmup) < WARMUP:
            self._warmup.append(norm)
            if len(self._warmup) == WARMUP:
                self._mean = sum(self._warmup) / WARMUP
                self._variance = sum((x - self._mean) ** 2 for x in self._warmup) / WARMUP
            return False
        deviation = math.sqrt(self._variance)
        z = (norm - self._mean) / (deviation + EPSILON)
        clips = z > SIGMAS
        fed = self._mean + SIGMAS * deviation / (z / SIGMAS) if clips else norm
        self._mean = ALPHA * self._mean + (1 - ALPHA) * fed
        self._variance = ALPHA * self._variance + (1 - ALPHA) * (fed - self._mean) ** 2
        return clips


class _Package:
    """The package's clipper on a model of one number whose gradient is the norm."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._model = self._torch.nn.Linear(1, 1, bias=False, dtype=self._torch.float64)
        # Its fixed clipping at 1.0 is no detection, so it is off.
        self._clipper = importlib.import_module("zclip").ZClip(max_grad_norm=None)

    def see(self, loss: float, norm: float | None) -> bool:
        if norm is None:
            return False
        gradient = self._torch.full((1, 1), norm, dtype=self._torch.float64)
        self._model.weight.grad = gradient
        self._clipper.step(self._model)
        return bool(gradient.item() < norm)
