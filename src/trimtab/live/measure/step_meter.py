"""StepMeter: what is measured on the device in every step, as a vector of sums over ranks.

    guard.record(loss, tokens)   added up over micro-batches
    guard.clip_grad_norm_        the norm before clipping, or given by the user, or measured
    head()                       all of it as one vector, in the order of HEAD

Values that are not finite are counted, not added: the sums must stay sums of numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.measure.gradients import GradientNorm
from trimtab.live.measure.numbers import as_float, as_scalar, root

RULE_HEAD = (
    *("loss", "tokens", "nan", "inf"),
    *("given_norm", "num_given", "grad_squares", "num_measured"),
)
"""What the gate's rule reads, in its order. `tokens` are weights: 1 a micro-batch if not given."""

HEAD = (*RULE_HEAD, "no_tokens", "minus_inf", "recorded", "phase", "phase_squares")
"""What is measured at every step. `recorded` counts ranks, `phase` adds up their steps mod 16."""

PHASES = 16


class StepMeter:
    """Loss and gradient norm of one step."""

    def __init__(self, optimizers: Sequence[Optimizer], device: torch.device) -> None:
        self._optimizers = optimizers
        self.device = device
        self.gradients = GradientNorm(device)
        small = sorted({*range(PHASES), *(phase**2 for phase in range(PHASES))})
        numbers = torch.tensor(small, dtype=torch.float32, device=device).unbind()
        self._constants = dict(zip(map(float, small), numbers, strict=True))
        self.reset()

    def reset(self) -> None:
        """Start the next step."""
        self.num_losses = 0
        """Losses recorded for the step on this rank."""
        self.norm_is_given = False
        """Whether the norm before clipping is known from the user or from the guard's clipping."""
        self._no_tokens = 0
        self._total: tuple[torch.Tensor, torch.Tensor] | None = None
        self._latest: tuple[torch.Tensor, torch.Tensor] | None = None
        self._given_norm: torch.Tensor | None = None
        self._is_from_user = False
        self._squares: torch.Tensor | None = None

    def add_loss(self, loss: Any, tokens: Any, *, follows_backward: bool) -> None:
        """Take one micro-batch; without a token count each weighs the same.

        A loss that is not finite and that no backward followed was skipped by the user: it is
        dropped when the next one comes.
        """
        value = as_scalar(loss, self.device)
        weight = self._constant(1.0) if tokens is None else as_scalar(tokens, self.device)
        self._fold_latest(keep_all=follows_backward)
        weighted = value * weight
        if tokens is not None:  # the mean over no tokens is NaN, and no fault
            weighted = weighted.masked_fill(weight == 0, 0.0)
        self._latest = (weighted, weight)
        self._no_tokens += tokens is None
        self.num_losses += 1

    def give_norm(self, norm: Any, *, is_from_user: bool) -> None:
        """Take the gradient norm before clipping, from the user or from the guard's clipping."""
        # A copy: the tensor may be changed later.
        self._given_norm = as_scalar(norm, self.device).clone()
        self._is_from_user = is_from_user
        self.norm_is_given = True

    @property
    def norm_is_of_gradients(self) -> bool:
        """Whether the norm is that of the present gradients, and not one that the user gave."""
        return not (self._given_norm is not None and self._is_from_user)

    def give_squares(self, squares: torch.Tensor | None) -> None:
        """Take the sum of squares of the gradients that are about to be applied."""
        if squares is None:
            return
        if self._squares is not None:  # from before clipping: what is applied must be finite
            self._squares = self._squares + squares * 0.0
            return
        scale = self._grad_scale()
        self._squares = squares if scale is None else squares / scale.square()

    def give_squares_before_clip(self, squares: torch.Tensor | None) -> None:
        """Take the sum of squares from before the guard's clipping, where ranks hold parts."""
        self._squares = squares
        self.norm_is_given = squares is not None

    def unscale_given_norm(self) -> None:
        """Divide the norm of the guard's clipping by the scale that gradients still have."""
        if self._given_norm is not None and not self._is_from_user:
            scale = self._grad_scale()
            if scale is not None:
                self._given_norm = self._given_norm / scale

    def local_loss(self, world: int) -> torch.Tensor | None:
        """The loss of this rank alone."""
        weighted, tokens = self._sums()
        if world == 1:
            return weighted
        # A rank without tokens has no loss, and not one that is not a number.
        return weighted / torch.where(tokens == 0, self._constant(1.0), tokens)

    def head(self, phase: int) -> torch.Tensor:
        """The sums of the step, in the order of HEAD."""
        weighted, tokens = self._sums()
        zero, one = self._constant(0.0), self._constant(1.0)
        given, squares = self._given_norm, self._squares
        if given is not None and squares is not None:
            # A norm that was given vouches for size only: NaN and infinity in the gradients that
            # are applied make it NaN.
            given = given + squares * 0.0
        return torch.stack(
            [
                torch.nan_to_num(weighted, nan=0.0, posinf=0.0, neginf=0.0),
                tokens,
                torch.isnan(weighted).float(),
                torch.isinf(weighted).float(),
                zero if given is None else given,
                zero if given is None else one,
                zero if squares is None else squares,
                zero if squares is None else one,
                self._constant(float(self._no_tokens)),
                (weighted == -math.inf).float(),
                self._constant(float(self.num_losses > 0)),
                self._constant(float(phase)),
                self._constant(float(phase**2)),
            ]
        )

    def empty_head(self) -> torch.Tensor:
        """Sums that say nothing, for a rank that failed."""
        return torch.zeros(len(HEAD), dtype=torch.float32, device=self.device)

    def _sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        self._fold_latest(keep_all=True)
        return self._total or (self._constant(0.0), self._constant(0.0))

    def _fold_latest(self, *, keep_all: bool) -> None:
        if self._latest is None:
            return
        weighted, weight = self._latest
        self._latest = None
        if not keep_all:
            is_finite = torch.isfinite(weighted)
            zero = self._constant(0.0)
            weighted, weight = (
                torch.where(is_finite, weighted, zero),
                torch.where(is_finite, weight, zero),
            )
        if self._total is None:
            self._total = (weighted, weight)
        else:
            self._total = (self._total[0] + weighted, self._total[1] + weight)

    def _grad_scale(self) -> torch.Tensor | None:
        """The scale that GradScaler hands to a fused optimizer: its gradients are still scaled."""
        scales = (getattr(optimizer, "grad_scale", None) for optimizer in self._optimizers)
        scale = next((scale for scale in scales if isinstance(scale, torch.Tensor)), None)
        return None if scale is None else as_scalar(scale, self.device)

    def _constant(self, value: float) -> torch.Tensor:
        """A number on the device; small ones are there already."""
        known = self._constants.get(value)
        if known is None:
            known = torch.full((), value, dtype=torch.float32, device=self.device)
        return known


def have_slipped(sums: Mapping[str, float]) -> bool:
    """Whether ranks that recorded are at different steps; the same answer on every rank."""
    return sums["recorded"] * sums["phase_squares"] != sums["phase"] ** 2


def read_head(sums: Mapping[str, float]) -> dict[str, float]:
    """The signals that the sums over all ranks give."""
    found: dict[str, float] = {}
    if sums["no_tokens"] == 0 and sums["tokens"] > 0:
        found[signals.TOKENS] = sums["tokens"]
    if sums["nan"] > 0:
        found[signals.LOSS] = math.nan
    elif sums["inf"] > 0:
        only_minus = sums["minus_inf"] == sums["inf"]
        found[signals.LOSS] = -math.inf if only_minus else math.inf
    elif sums["tokens"] > 0:
        found[signals.LOSS] = sums["loss"] / sums["tokens"]
    squares = sums["grad_squares"]
    if sums["num_given"] > 0 and math.isfinite(squares):
        found[signals.GRAD_NORM] = sums["given_norm"] / sums["num_given"]
    elif sums["num_measured"] > 0:
        found[signals.GRAD_NORM] = root(squares)
    return found


_RESERVED = frozenset(
    {
        *(signals.LOSS, signals.GRAD_NORM, signals.TOKENS, signals.CLIPPED_GRAD_NORM, signals.LR),
        signals.PLANNED_LR,
        *(signals.LOSS_SCALE, signals.DISCARDED, signals.MAX_RANK_LOSS, signals.MAX_LOSS_RANK),
        *(signals.PARAM_NORM, signals.UPDATE_NORM, signals.UPDATE_PER_LR, signals.ADAM_STEP),
        *(signals.ADAM_M_NORM, signals.ADAM_V_NORM, signals.GRAD_MOMENTUM_COSINE),
        *(signals.GRAD_TO_V_RMS, signals.ZERO_GRAD_SHARE, signals.FINGERPRINT),
        *(signals.UNIQUE_TOKEN_SHARE, signals.TOKEN_RARITY, signals.SHIFT_SHARE),
        signals.RESUME_AUDIT,
        *signals.CLOCKS,
    }
)
"""Signals that trimtab measures itself; a user's signal may not take their names."""


def is_reserved(name: str) -> bool:
    """Whether a signal is one of trimtab's own."""
    return name in _RESERVED or name.startswith((signals.GRAD_NORM_OF, signals.ACTIVATION_RMS))


class UserSignals:
    """The user's own signals of a step, of the first rank only; in double precision."""

    LIMIT = 64
    """Signals that a user may add to a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # There are no doubles on some devices.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._on_host: dict[str, float] = {}
        self._on_device: dict[str, torch.Tensor] = {}

    def add(self, name: str, value: Any) -> None:
        """Take a signal; what was given first for a step stands."""
        if name in self._on_host or name in self._on_device:
            return
        if len(self._on_host) + len(self._on_device) >= self.LIMIT:
            return
        if isinstance(value, torch.Tensor):
            # A copy: the tensor may be changed later.
            self._on_device[name] = as_scalar(value, self._device, self._dtype).clone()
        else:
            self._on_host[name] = as_float(value)

    def pop(self) -> tuple[dict[str, float], tuple[str, ...], torch.Tensor | None]:
        """What is on the host, and the names and values of what is on the device."""
        on_host, on_device = self._on_host, self._on_device
        self._on_host, self._on_device = {}, {}
        values = torch.stack(list(on_device.values())) if on_device else None
        return on_host, tuple(on_device), values
