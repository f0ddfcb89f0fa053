"""StepMeter: what is measured on the device in every step, as a vector of sums over ranks.

    guard.record(loss, tokens)   added up over micro-batches
    guard.clip_grad_norm_        the norm before clipping, or given by the user, or measured of the
                                 gradients that are about to be applied (`GradientNorm`)
    head()                       all of it as one vector, in the order of HEAD

Values that are not finite are counted, not added: the sums must stay sums of numbers. `Mark` tells
whether gradients are still the same; `UserSignals` are what the user measures.
"""

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.ranks.shards import norm_dtype, real
from trimtab.state.host_copy import local, version_of
from trimtab.state.sharded_types import is_dtensor

# Numbers as people give them.

Number = float | int | torch.Tensor


class OddNumber(ValueError):
    """A value that cannot be read as one number; the message says what it is."""


def as_scalar(value: Any, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A number as a detached scalar on the device; a host number travels inside a kernel."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise OddNumber(f"a {value.dtype} tensor of shape {tuple(value.shape)}")
        scalar = value.detach()
        if is_dtensor(scalar):  # replicated, as clip_grad_norm_ returns it: it is whole
            scalar = scalar.to_local()
        return scalar.reshape(()).to(dtype).to(device, non_blocking=True)
    return torch.full((), as_float(value), dtype=dtype, device=device)


def as_float(value: Any) -> float:
    """A number that is on the host."""
    if isinstance(value, str | bytes) or value is None:
        raise OddNumber(repr(value)[:40])
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OddNumber(f"{type(value).__name__} ({error})") from error


def root(square: float) -> float:
    """The root of a sum of squares; rounding may leave a tiny negative one."""
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else abs(square)


# The gradients that are about to be applied: their norm, and whether they are still the same.

SAMPLE = 16
"""Parameters whose gradients are compared from one record to the next."""

MANY_TENSORS, SMALL_ELEMENTS = 64, 4096
"""On a processor, more than 64 tensors of at most 4,096 elements are joined for their norm: a norm
of each costs more than the copy."""


class GradientNorm:
    """The sum of squares over the gradients of optimizers, right for every layout of ranks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[torch.Tensor, float] = {}
        """How many ranks hold the same part of a parameter; 1 until they were compared."""
        self._usual_copies = 1.0
        self._differ = False

    def set_copies(self, parameters: Sequence[torch.Tensor], copies: Sequence[float]) -> None:
        self._copies = dict(zip(parameters, copies, strict=True))
        self._usual_copies = max(copies, default=1.0)
        self._differ = len(set(copies)) > 1

    def copies_of(self, parameter: torch.Tensor) -> float:
        """How many ranks hold the same part; a parameter added later is like most."""
        return self._copies.get(parameter, self._usual_copies)

    @property
    def is_whole_on_every_rank(self) -> bool:
        """Whether plain torch computes the same norm on every rank."""
        return not self._differ

    @torch.no_grad()
    def squares(self, optimizers: Iterable[Optimizer]) -> torch.Tensor | None:
        """This rank's share of the sum over ranks; None if nothing has a gradient.

        Over `param_groups` as they are now: what was added a moment ago counts.
        """
        # Looking a tensor up in a dict costs more than all else here: only where copies differ.
        copies, usual = self._copies if self._differ else {}, self._usual_copies
        parts: dict[tuple[torch.device, float], list[torch.Tensor]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is None:
                        continue
                    if type(gradient) is not torch.Tensor or gradient.layout != torch.strided:
                        gradient = real(local(gradient))
                    elif gradient.is_complex():
                        gradient = torch.view_as_real(gradient)
                    held = copies.get(parameter, usual) if copies else usual
                    key = (gradient.device, held)
                    same = parts.get(key)
                    if same is None:
                        parts[key] = [gradient]
                    else:
                        same.append(gradient)
        if not parts:
            return None
        totals = [
            as_scalar(_sum_of_squares(tensors) / copies, self._device)
            for (_, copies), tensors in parts.items()
        ]
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


def _sum_of_squares(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(tensors) > MANY_TENSORS and tensors[0].device.type == "cpu":
        small = [tensor for tensor in tensors if tensor.numel() <= SMALL_ELEMENTS]
        if len(small) > MANY_TENSORS and len({tensor.dtype for tensor in small}) == 1:
            joined = torch._C._nn.flatten_dense_tensors(small)
            tensors = [t for t in tensors if t.numel() > SMALL_ELEMENTS] + [joined]
    norms = torch._foreach_norm(tensors, 2.0, dtype=norm_dtype(*tensors))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total.square()


class Change(Enum):
    """What has become of gradients since they were last looked at."""

    NONE = "none"
    GREW = "grew"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Mark:
    """Gradients by identity and version.

    Weak references to some of them make sure that a new tensor in the place of an old one is never
    taken for it; they keep no memory.
    """

    versions: list[tuple[int, int] | None]
    references: "dict[int, weakref.ref[torch.Tensor]]"

    def are_gone(self) -> bool:
        """Whether some of the gradients do not exist any more."""
        return any(reference() is None for reference in self.references.values())


NO_GRADIENTS = Mark([], {})


def mark(parameters: Iterable[torch.Tensor]) -> Mark:
    gradients = [parameter.grad for parameter in parameters]
    versions = [None if g is None else (id(g), version_of(g)) for g in gradients]
    places = [place for place, version in enumerate(versions) if version is not None]
    some = places[:: max(len(places) // SAMPLE, 1)]
    return Mark(versions, {at: weakref.ref(g) for at in some if (g := gradients[at]) is not None})


def compare(before: Mark, now: Mark) -> Change:
    """How gradients have changed between two marks of the same parameters."""
    if before.are_gone():
        return Change.REPLACED
    if before.versions == now.versions:
        return Change.NONE
    for old, new in zip(before.versions, now.versions, strict=True):
        if old is not None and (new is None or old[0] != new[0]):
            return Change.REPLACED
    return Change.GREW


def without(now: Mark, used: Mark) -> Mark:
    """A mark in which gradients that an optimizer has used already count as none."""
    if not used.versions:
        return now
    gone = {at for at, reference in used.references.items() if reference() is None}
    versions = [
        None if old == new and at not in gone else new
        for at, (old, new) in enumerate(zip(used.versions, now.versions, strict=True))
    ]
    fresh = {at: ref for at, ref in now.references.items() if versions[at] is not None}
    return Mark(versions, fresh)


def sample(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some of the parameters that get gradients, spread evenly."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    stride = max(len(trained) // SAMPLE, 1)
    return trained[::stride][:SAMPLE]


# The numbers of a step, as sums over ranks.

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

    def count_odd_loss(self) -> None:
        """A loss that is no number was recorded: the step counts as recorded."""
        self.num_losses += 1

    def set_norm(self, norm: Any, *, is_from_user: bool) -> None:
        """Take the gradient norm before clipping, from the user or from the guard's clipping."""
        # A copy: the tensor may be changed later.
        self._given_norm = as_scalar(norm, self.device).clone()
        self._is_from_user = is_from_user
        self.norm_is_given = True

    @property
    def norm_is_of_gradients(self) -> bool:
        """Whether the norm is that of the present gradients, and not one that the user gave."""
        return not (self._given_norm is not None and self._is_from_user)

    def set_squares(self, squares: torch.Tensor | None) -> None:
        """Take the sum of squares of the gradients that are about to be applied."""
        if squares is None:
            return
        if self._squares is not None:  # from before clipping: what is applied must be finite
            self._squares = self._squares + squares * 0.0
            return
        scale = self._grad_scale()
        self._squares = squares if scale is None else squares / scale.square()

    def set_squares_before_clip(self, squares: torch.Tensor | None) -> None:
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


def is_finite_step(head: Mapping[str, float]) -> bool:
    """Return whether the losses and gradients of a step were finite on all ranks."""
    norm = head["given_norm"] + head["grad_squares"]
    return math.isfinite(norm) and head["nan"] + head["inf"] == 0


def have_slipped(sums: Mapping[str, float]) -> bool:
    """Whether ranks that recorded are at different steps; the same answer on every rank."""
    return sums["recorded"] * sums["phase_squares"] != sums["phase"] ** 2


def read_head(sums: Mapping[str, float]) -> dict[str, float]:
    """The signals that the sums over all ranks give."""
    found: dict[str, float] = {}
    if sums["no_tokens"] == 0 and sums["recorded"] > 0:  # 0 tokens are worth a record, too
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


# The user's own signals, and the learning rates.


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


MAX_GROUPS = 16
"""Groups whose learning rates are recorded: some loops have a group for each parameter."""


def main_learning_rate(optimizers: Iterable[Optimizer]) -> dict[str, float | torch.Tensor]:
    """Return the learning rate of the largest group as `lr`, and of each if there are several."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates: dict[str, float | torch.Tensor] = {}
    sizes: dict[str, int] = {}
    for number, group in enumerate(groups[:MAX_GROUPS]):
        rate = group.get("lr")
        if isinstance(rate, torch.Tensor):
            rates[f"{signals.LR}/{number}"] = rate
        elif isinstance(rate, int | float):
            rates[f"{signals.LR}/{number}"] = float(rate)
        else:  # such as None, where an optimizer finds its own
            continue
        if len(groups) > 1:
            trained = [p.numel() for p in group["params"] if p.requires_grad]
            sizes[f"{signals.LR}/{number}"] = sum(trained)
    if not rates:
        return {}
    if len(groups) == 1:
        return {signals.LR: next(iter(rates.values()))}
    main = {signals.LR: rates[max(rates, key=sizes.__getitem__)]}
    return main if len(rates) == 1 else {**main, **rates}
