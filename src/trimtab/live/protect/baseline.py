"""Baseline: the usual loss and gradient norm of a run, that each step is compared with.

They are the median and the median absolute deviation of the last `window` steps that have a finite
loss and a gradient. Discarded steps enter like all others: there are few of them, a median hardly
notices them, and a level that has moved is learnt in half a window. Both are computed on a fixed
grid of steps, which is often enough and leaves few operations for the steps in between.

A loss that falls over the window is spread out by its trend as well as by its noise. So its sigma
is also computed from the differences of neighbouring steps, and the smaller one counts. That of the
norm is not: it decides which steps are touched at all.
"""

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.core.robust import SIGMA
from trimtab.live.arithmetic import Math

REFRESH_STEPS = 16
"""Steps from one computation of the median to the next: an eighth of the window by default."""

LOSS_FLOOR = 0.002
"""The smallest sigma of the loss, as a share of the usual loss: without it every batch of a loss
that hardly moves is an outlier. Source: healthy public runs, where 0.05 to 0.5 % were equal."""

LOSS_ZERO = 1e-6
"""The smallest sigma of a loss around 0. Source: with a sigma of 0, a loss of 1e-12 after some
hundred of exactly 0 was infinitely many sigmas away."""

NORM_FLOOR = 0.03
"""The smallest sigma of the log of the gradient norm. Source: healthy public runs."""

ONE_OF_TWO = 0.5**0.5
"""The noise of one step as a share of that of the difference between two."""

SIZE_SIGMAS = 5.0
"""The size of a loss is its median, or this many sigmas if that is more: a loss that changes its
sign has a median near 0. Source: a language model has a median of 12 to 100 sigmas."""


class DeviceBaseline:
    """Holds what is usual in buffers of fixed size on the device."""

    def __init__(self, window: int, device: torch.device) -> None:
        self._window = torch.full((window, 2), math.inf, dtype=torch.float32, device=device)
        """Loss and log norm of the last steps, in a ring."""
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        """Where the next step goes. It stays where it is after a step that does not count, which is
        overwritten by the next one."""
        self._steps = 0
        self._scales = self._window.new_full((5,), math.nan)
        self.count = torch.zeros((), dtype=torch.long, device=device)
        """Steps that the numbers are computed from."""
        self._zeros = self._window.new_zeros(2)
        self._floor = self._window.new_tensor([LOSS_ZERO, NORM_FLOOR])
        self._floor_by_size = self._window.new_tensor([LOSS_FLOOR, 0.0])
        self._name_scales()

    def _name_scales(self) -> None:
        """Name the numbers that a step is compared with; NaN while nothing is known."""
        scales: tuple[torch.Tensor, ...] = self._scales.unbind()
        self.usual_loss, self.usual_log_norm, self.loss_sigma, self.norm_sigma = scales[:4]
        self.loss_size = scales[4]

    def update(self, loss: torch.Tensor, log_norm: torch.Tensor) -> bool:
        """Add a step; returns whether the numbers have been computed anew."""
        step = torch.stack((loss, log_norm))
        counts = torch.dot(step, self._zeros) == 0  # NaN if either is not finite
        self._window.index_put_((self._place,), step)
        self._place.add_(counts).remainder_(len(self._window))
        self._steps += 1
        if self._steps % REFRESH_STEPS != 0:
            return False
        self._refresh()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on; the tensors are not copied."""
        tensors = {"window": self._window, "place": self._place, "scales": self._scales}
        return tensors | {"count": self.count, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._window.copy_(state["window"])
        self._place.copy_(state["place"])
        self._scales.copy_(state["scales"])
        self.count.copy_(state["count"].reshape(()))
        self._steps = int(state["steps"])

    def _refresh(self) -> None:
        counts = (self._window * self._zeros).sum(dim=1, keepdim=True) == 0
        self.count = counts.sum()
        # Steps that do not count become infinite and sort after the rest.
        values = torch.where(counts, self._window, math.inf)
        usual = self._median(values)
        sizes = usual.abs()
        floor = torch.addcmul(self._floor, sizes, self._floor_by_size)
        spread = torch.maximum(floor, SIGMA * self._median((values - usual).abs()))
        # Of a window that is not full, differences with what does not count sort after the rest.
        differences = (values - values.roll(1, dims=0)).abs()
        noise = torch.maximum(floor, SIGMA * ONE_OF_TWO * self._median(differences))
        loss_sigma = torch.minimum(spread, noise)[:1]
        size = torch.maximum(sizes, SIZE_SIGMAS * spread)[:1]
        self._scales = torch.cat((usual, loss_sigma, spread[1:], size))
        self._name_scales()

    def _median(self, values: torch.Tensor) -> torch.Tensor:
        """Return the median of the first `count` values of each column; the upper one of two."""
        return values.sort(dim=0).values.index_select(0, self.count.view(1) >> 1).view(2)


class HostBaseline:
    """Holds what is usual in host memory, in double precision."""

    def __init__(self, window: int) -> None:
        self._window: NDArray[np.float64] = np.full((window, 2), math.inf)
        """Loss and log norm of the last steps, in a ring."""
        self._place = self._steps = self.count = 0
        self._set((math.nan,) * 5)

    def _set(self, scales: tuple[float, ...]) -> None:
        self._scales = scales
        self.usual_loss, self.usual_log_norm, self.loss_sigma, self.norm_sigma = scales[:4]
        self.loss_size = scales[4]

    def update(self, loss: float, log_norm: float) -> bool:
        self._window[self._place] = loss, log_norm
        if math.isfinite(loss) and math.isfinite(log_norm):  # else the next step overwrites it
            self._place = (self._place + 1) % len(self._window)
        self._steps += 1
        if self._steps % REFRESH_STEPS != 0:
            return False
        with np.errstate(invalid="ignore"):  # of two infinities, which sort after the rest
            self._refresh()
        return True

    def state_dict(self) -> dict[str, Any]:
        numbers = {"place": [self._place], "count": [self.count]}
        return {
            "window": torch.from_numpy(self._window.copy()),
            "scales": torch.tensor(self._scales, dtype=torch.float64),
            **{name: torch.tensor(value) for name, value in numbers.items()},
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        window = state["window"].double().cpu().numpy()
        if window.shape != self._window.shape:
            raise RuntimeError(f"it knows {len(window)} steps, and not {len(self._window)}")
        self._window[:] = window
        self._place, self.count = int(state["place"]), int(state["count"])
        self._set(tuple(state["scales"].tolist()))
        self._steps = int(state["steps"])

    def _refresh(self) -> None:
        counts = np.isfinite(self._window.sum(axis=1))  # NaN or infinite if either is
        self.count = int(counts.sum())
        values = np.where(counts[:, None], self._window, math.inf)
        usual = self._median(values)
        sizes = np.abs(usual)
        floor = np.array([LOSS_ZERO, NORM_FLOOR]) + sizes * np.array([LOSS_FLOOR, 0.0])
        spread = np.maximum(floor, SIGMA * self._median(np.abs(values - usual)))
        differences = np.abs(values - np.roll(values, 1, axis=0))
        noise = np.maximum(floor, SIGMA * ONE_OF_TWO * self._median(differences))
        loss_sigma = np.minimum(spread, noise)[0]
        size = np.maximum(sizes, SIZE_SIGMAS * spread)[0]
        self._set((*usual.tolist(), float(loss_sigma), float(spread[1]), float(size)))

    def _median(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.sort(values, axis=0)[self.count >> 1]
        return found


Baseline: TypeAlias = HostBaseline | DeviceBaseline


def baseline_of(window: int, arithmetic: Math) -> Baseline:
    """Return an empty baseline, where the numbers of a step are."""
    return HostBaseline(window) if arithmetic.is_host else DeviceBaseline(window, arithmetic.device)
