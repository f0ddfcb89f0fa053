"""StepMeter: what is measured in every step, as a vector of sums over ranks.

    guard.record(loss, tokens)   added up over micro-batches
    guard.clip_grad_norm_        the norm before clipping, or given by the user, or measured of the
                                 gradients that are about to be applied (`GradientNorm`)
    step_sums()                  all of it as one vector, in the order of STEP_SUMS

Numbers are tensors on a device and floats on a host (`arithmetic`). Values that are not finite are
counted, not added: the sums must stay sums of numbers. `Mark` tells whether gradients are still the
same; `UserSignals` are what the user measures.
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
from trimtab.live.arithmetic import (
    HostMath,
    Math,
    OddNumber,
    Scalar,
    Vector,
    as_scalar,
    is_finite,
)
from trimtab.live.ranks.shards import norm_dtype, real
from trimtab.state.host_copy import local

Number = float | int | torch.Tensor
"""What a user may give as a number."""


def root(square: float) -> float:
    """The root of a sum of squares; rounding may leave a tiny negative one."""
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else abs(square)


# The gradients that are about to be applied: their norm, and whether they are still the same.

SAMPLE, REFERENCES = 16, 4
"""Parameters whose gradients are compared from one record to the next, and those of them that are
held by weak references. Chosen: a loop replaces all gradients or none."""

MANY_TENSORS, SMALL_ELEMENTS = 64, 4096
"""On a processor, more than 64 tensors of at most 4,096 elements are joined for their norm: a norm
of each costs more than the copy."""


class GradientNorm:
    """The sum of squares over the gradients of optimizers, right for every layout of ranks."""

    def __init__(self, arithmetic: Math) -> None:
        self._math = arithmetic
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

    def squares(self, optimizers: Iterable[Optimizer]) -> Scalar | None:
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
        found = None
        for (_, held), tensors in parts.items():
            norm = self._math.number(_norm(tensors))
            squares = norm * norm if held == 1 else norm * norm / held
            found = squares if found is None else found + squares
        return found


def _norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    has_graph = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # the context manager of torch takes five calls
    try:
        return _norm_without_graph(tensors)
    finally:
        torch._C._set_grad_enabled(has_graph)


def _norm_without_graph(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(tensors) > MANY_TENSORS and tensors[0].device.type == "cpu":
        small = [tensor for tensor in tensors if tensor.numel() <= SMALL_ELEMENTS]
        if len(small) > MANY_TENSORS and len({tensor.dtype for tensor in small}) == 1:
            joined = torch._C._nn.flatten_dense_tensors(small)
            tensors = [t for t in tensors if t.numel() > SMALL_ELEMENTS] + [joined]
    norms = torch._foreach_norm(tensors, 2.0, dtype=norm_dtype(*tensors))
    if len(norms) == 1:
        return norms[0]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


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
    has_gradients: bool

    def are_gone(self) -> bool:
        """Whether some of the gradients do not exist any more."""
        return None in [reference() for reference in self.references.values()]


NO_GRADIENTS = Mark([], {}, has_gradients=False)


def mark(parameters: Sequence[torch.Tensor], num_references: int = REFERENCES) -> Mark:
    """Look at the gradients of parameters, without reading them."""
    versions: list[tuple[int, int] | None] = []
    references = {}
    stride = max(len(parameters) // max(num_references, 1), 1)
    has_gradients = False
    for place, parameter in enumerate(parameters):
        gradient = parameter.grad
        if gradient is None:
            versions.append(None)
            continue
        # Tensors of `torch.inference_mode` count no versions.
        version = 0 if gradient.is_inference() else gradient._version
        versions.append((id(gradient), version))
        if place % stride == 0 or not has_gradients:
            references[place] = weakref.ref(gradient)
        has_gradients = True
    return Mark(versions, references, has_gradients)


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
    if not used.has_gradients or not now.has_gradients:
        return now
    gone = {at for at, reference in used.references.items() if reference() is None}
    versions = [
        None if old == new and at not in gone else new
        for at, (old, new) in enumerate(zip(used.versions, now.versions, strict=True))
    ]
    fresh = {at: ref for at, ref in now.references.items() if versions[at] is not None}
    return Mark(versions, fresh, has_gradients=any(versions))


def still_there(used: Mark, now: Mark, fresh: Mark) -> Mark:
    """The gradients of `used` that `now` shows unchanged; `fresh` is `now` without them.

    A gradient that is made later may come to have the address and version of one that is gone.
    """
    if not used.has_gradients or fresh is now:
        return NO_GRADIENTS
    versions = [
        old if old == at_hand and new is None else None
        for old, at_hand, new in zip(used.versions, now.versions, fresh.versions, strict=True)
    ]
    references = {at: ref for at, ref in used.references.items() if versions[at] is not None}
    return Mark(versions, references, has_gradients=any(versions))


def sample(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some of the parameters that get gradients, spread evenly."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    stride = max(len(trained) // SAMPLE, 1)
    return trained[::stride][:SAMPLE]


# The numbers of a step, as sums over ranks.

RULE_SUMS = (
    *("loss", "tokens", "nan", "inf"),
    *("given_norm", "num_given", "grad_squares", "num_measured"),
)
"""What the gate's rule reads, in its order. `tokens` are weights: 1 a micro-batch if not given."""

STEP_SUMS = (*RULE_SUMS, "no_tokens", "minus_inf", "recorded", "phase", "phase_squares")
"""What is measured at every step. `recorded` counts ranks, `phase` adds up their steps mod 16."""

PHASES = 16


class StepMeter:
    """Loss and gradient norm of one step."""

    def __init__(
        self, optimizers: Sequence[Optimizer], device: torch.device, arithmetic: Math
    ) -> None:
        self._optimizers = optimizers
        self.device = device
        self.arithmetic = arithmetic
        self.gradients = GradientNorm(arithmetic)
        self.reset()

    def reset(self) -> None:
        self.num_losses = 0
        """Losses recorded for the step on this rank."""
        self.norm_is_given = False
        """Whether the norm before clipping is known from the user or from the guard's clipping."""
        self._no_tokens = 0
        self._total: tuple[Scalar, Scalar] | None = None
        self._latest: tuple[Scalar, Scalar] | None = None
        self._given_norm: Scalar | None = None
        self._is_from_user = False
        self._squares: Scalar | None = None

    def count_of(self, tokens: Any) -> Scalar:
        """Return a count of tokens; raises OddNumber, but of one on a device only for its shape."""
        count = self.arithmetic.number(tokens)
        on_host = isinstance(count, float) or not isinstance(tokens, torch.Tensor)
        if on_host and not 0 <= float(count if isinstance(count, float) else tokens) < math.inf:
            raise OddNumber(f"{float(tokens):g}")
        return count

    def add_loss(self, loss: Any, tokens: Scalar | None, *, follows_backward: bool) -> None:
        """Take one micro-batch; without a token count each weighs the same; raises OddNumber.

        A loss that is not finite and that no backward followed was skipped by the user: it is
        dropped when the next one comes.
        """
        numbers = self.arithmetic
        weighted = numbers.number(loss)
        weight = numbers.one if tokens is None else tokens
        if self._latest is not None:
            self._fold_latest(keep_all=follows_backward)
        if tokens is not None:  # the mean over no tokens is NaN, and no fault
            weighted = numbers.where(weight == 0, numbers.zero, weighted * weight)
        self._latest = (weighted, weight)
        self._no_tokens += tokens is None
        self.num_losses += 1

    def count_odd_loss(self) -> None:
        """A step without a number for its loss was recorded: its tokens are not known either."""
        self.num_losses += 1
        self._no_tokens += 1

    def set_norm(self, norm: Any, *, is_from_user: bool) -> None:
        """Take the gradient norm before clipping, from the user or from the guard's clipping."""
        self._given_norm = self.arithmetic.kept(self.arithmetic.number(norm))
        self._is_from_user = is_from_user
        self.norm_is_given = True

    @property
    def norm_is_of_gradients(self) -> bool:
        """Whether the norm is that of the present gradients, and not one that the user gave."""
        return not (self._given_norm is not None and self._is_from_user)

    def set_squares(self, squares: Scalar | None) -> None:
        """Take the sum of squares of the gradients that are about to be applied."""
        if squares is None:
            return
        if self._squares is not None:  # from before clipping: what is applied must be finite
            self._squares = self._squares + squares * 0.0
            return
        scale = self._grad_scale()
        self._squares = squares if scale is None else self.arithmetic.ratio(squares, scale * scale)

    def set_squares_before_clip(self, squares: Scalar | None) -> None:
        """Take the sum of squares from before the guard's clipping, where ranks hold parts."""
        self._squares = squares
        self.norm_is_given = squares is not None

    def unscale_given_norm(self) -> None:
        """Divide the norm of the guard's clipping by the scale that gradients still have."""
        if self._given_norm is not None and not self._is_from_user:
            scale = self._grad_scale()
            if scale is not None:
                self._given_norm = self.arithmetic.ratio(self._given_norm, scale)

    def local_loss(self, world: int) -> Scalar:
        weighted, tokens = self._sums()
        if world == 1:
            return weighted
        # A rank without tokens has no loss, and not one that is not a number.
        numbers = self.arithmetic
        return numbers.ratio(weighted, numbers.where(tokens == 0, numbers.one, tokens))

    def step_sums(self, phase: int) -> Vector:
        weighted, tokens = self._sums()
        numbers = self.arithmetic
        zero, one = numbers.zero, numbers.one
        given, squares = self._given_norm, self._squares
        if given is not None and squares is not None:
            # A norm that was given vouches for size only: NaN and infinity in the gradients that
            # are applied make it NaN.
            given = given + squares * 0.0
        size = abs(weighted)
        return numbers.vector(
            (
                numbers.where(size < math.inf, weighted, zero),
                tokens,
                weighted != weighted,
                size == math.inf,
                zero if given is None else given,
                zero if given is None else one,
                zero if squares is None else squares,
                zero if squares is None else one,
                self._no_tokens,
                weighted == -math.inf,
                one if self.num_losses else zero,
                phase,
                phase**2,
            )
        )

    def step_sums_of_norm(self, squares: Scalar | None) -> Vector:
        """Sums that say nothing but the squares of gradients, for a further optimizer."""
        zero = self.arithmetic.zero
        found = dict.fromkeys(STEP_SUMS, zero)
        found["grad_squares"] = zero if squares is None else squares
        return self.arithmetic.vector(tuple(found.values()))

    def _sums(self) -> tuple[Scalar, Scalar]:
        if self._latest is not None:
            self._fold_latest(keep_all=True)
        return self._total or (self.arithmetic.zero, self.arithmetic.zero)

    def _fold_latest(self, *, keep_all: bool) -> None:
        weighted, weight = self._latest or (self.arithmetic.zero, self.arithmetic.zero)
        self._latest = None
        if not keep_all:
            has_loss, zero = is_finite(weighted), self.arithmetic.zero
            weight = self.arithmetic.where(has_loss, weight, zero)
            weighted = self.arithmetic.where(has_loss, weighted, zero)
        if self._total is not None:
            weighted, weight = self._total[0] + weighted, self._total[1] + weight
        self._total = (weighted, weight)

    def _grad_scale(self) -> Scalar | None:
        """The scale that GradScaler hands to a fused optimizer: its gradients are still scaled."""
        for optimizer in self._optimizers:
            scale = getattr(optimizer, "grad_scale", None)
            if isinstance(scale, torch.Tensor):
                return self.arithmetic.number(scale)
        return None


def is_finite_step(sums: Mapping[str, float]) -> bool:
    """Return whether the losses and gradients of a step were finite on all ranks."""
    norm = sums["given_norm"] + sums["grad_squares"]
    return math.isfinite(norm) and sums["nan"] + sums["inf"] == 0


def ranks_out_of_step(sums: Mapping[str, float]) -> bool:
    """Whether ranks that recorded are at different steps; the same answer on every rank."""
    return sums["recorded"] * sums["phase_squares"] != sums["phase"] ** 2


def read_step_sums(sums: Mapping[str, float]) -> dict[str, float]:
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


HOST = HostMath()


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
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            # A copy: the tensor may be changed later.
            self._on_device[name] = as_scalar(value, self._device, self._dtype).clone()
        else:
            self._on_host[name] = HOST.number(value)

    @property
    def has_any(self) -> bool:
        return bool(self._on_host or self._on_device)

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
