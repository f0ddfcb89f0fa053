"""MemoryWatch: finds a bit that flipped in memory between two updates.

After an update the bits of weights and optimizer state are summed as whole numbers; before the next
one they are summed again. Between the two nothing but code can write them, and code counts: an
operation of torch raises the tensor's version, an assignment to `.data` moves its address. A sum
that differs while both are the same has two explanations:

    difference is +-2**k, and  one bit of one element flipped that changes its value by 6 % or
    the bit is a high one      more: memory, not code
    any other difference       `p.data.clamp_(...)`, a NumPy view, a broken kernel: not known

Only the first is proof. A low bit is none: in bf16 a clamp moves a weight by one unit in the last
place, which is a power of two, and a low bit does little harm. The second marks the tensor for
good: what code writes past torch's counters will one day change by a power of two as well. What is
left of the doubt: code that doubles, halves or negates exactly one element through `.data` looks
like a flipped bit.

Sums cost no memory and are computed on the device; nothing here is read on the host. Where the
state is too large to sum all of it twice in every step, each step takes the next share.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from trimtab.live.ranks.shards import bits, has_bits, is_in_words
from trimtab.state.host_copy import detached, local, version_of

SHARE_BYTES = 2 << 20
"""State that is summed in each step whatever its size. Source: two sums of 8 MB cost 0.8 % of a
step of a model with 10 million parameters on one CPU core, so 2 MB cost 0.2 %."""

SHARES = 64
"""A larger state is summed in at most this many steps."""

HIGH_BITS = 4
"""Bits of the mantissa that count, besides exponent and sign: the lowest changes a value by 3 to
6 %. Chosen: a clamp after each update has to take back less than that."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """A tensor as it was after an update."""

    place: int
    """Its place among all tensors of the optimizer."""
    tensor: torch.Tensor
    is_weight: bool
    version: int
    address: int

    @classmethod
    def of(cls, place: int, part: "StateTensor") -> "_Watched":
        # Of the local part: a DTensor does not count what is written to it.
        held = detached(part.tensor)
        return cls(place, part.tensor, part.key is None, version_of(held), held.data_ptr())

    @property
    def is_unwritten(self) -> bool:
        """Whether no code that counts has written it since."""
        part = detached(self.tensor)
        return version_of(part) == self.version and part.data_ptr() == self.address


class MemoryWatch:
    """Sums the bits of one optimizer's weights and state after an update and before the next."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self._device = device
        self._share: list[_Watched] = []
        self._sums: torch.Tensor | None = None
        self._next = 0
        """The place of the first tensor of the next share."""
        self._by_code = torch.zeros(0, dtype=torch.bool, device=device)
        """The tensors that code writes behind torch's back."""
        self._nothing = torch.zeros(3, device=device)

    def after_update(self) -> None:
        """Sum the bits of the next share of the state."""
        parts = state_tensors(self._optimizer)
        if len(self._by_code) != len(parts):  # the first update, or parameters were added
            self._by_code = torch.zeros(len(parts), dtype=torch.bool, device=self._device)
            self._next = 0
        places = self._choose([part.tensor for part in parts])
        self._share = [_Watched.of(place, parts[place]) for place in places]
        self._sums = self._sum(self._share) if self._share else None

    def before_update(self) -> torch.Tensor:
        """Compare: tensors with one flipped bit, weights that were written, place of the first.

        The place counts from 1 and is a sum: it names the tensor only if there is one. Moments that
        were written are not counted: code writes weights past torch's counters, not those.
        """
        before, self._sums = self._sums, None
        kept = [at for at, watched in enumerate(self._share) if watched.is_unwritten]
        if before is None or not kept:
            return self._nothing
        share = [self._share[at] for at in kept]
        if len(kept) < len(self._share):
            before = before[torch.tensor(kept, device=self._device)]
        difference = (self._sum(share) - before).abs()
        has_changed = difference != 0
        masks = torch.tensor([_high_bits(detached(w.tensor)) for w in share], device=self._device)
        is_one_bit = (difference & (difference - 1) == 0) & (difference & masks != 0)
        places = torch.tensor([watched.place for watched in share], device=self._device)
        known = self._by_code[places]
        self._by_code[places] = known | (has_changed & ~is_one_bit)
        flipped = is_one_bit & ~known
        is_weight = torch.tensor([watched.is_weight for watched in share], device=self._device)
        found = torch.stack((flipped, has_changed & ~flipped & is_weight, flipped)).float()
        found[2] *= places + 1
        return found.sum(dim=1)

    def forget(self) -> None:
        """Drop what was summed: the state has been restored from a snapshot."""
        self._share, self._sums = [], None

    def _choose(self, tensors: Sequence[torch.Tensor]) -> Iterator[int]:
        """Yield the places of the next share, in turn."""
        sizes = [local(tensor).nbytes for tensor in tensors]
        room = max(SHARE_BYTES, sum(sizes) // SHARES)
        for _ in tensors:
            place = self._next
            self._next = (place + 1) % len(tensors)
            # One element may be doubled by code on purpose.
            if has_bits(tensors[place]) and local(tensors[place]).numel() > 1:
                room -= sizes[place]
                yield place
            if room <= 0:
                return

    def _sum(self, share: Sequence[_Watched]) -> torch.Tensor:
        sums = [bits(detached(watched.tensor)).sum(dtype=torch.int64) for watched in share]
        return torch.stack([part.to(self._device) for part in sums])


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A parameter of an optimizer, or a tensor of its state."""

    parameter: torch.Tensor
    key: str | None
    """The name in the optimizer's state, such as "exp_avg"; None for the parameter itself."""
    tensor: torch.Tensor

    def name(self, names: Mapping[int, str]) -> str:
        """Return what a person calls it; `names` has those of parameters, by id."""
        owner = names.get(id(self.parameter), "a parameter without a name")
        return owner if self.key is None else f"{self.key} of {owner}"


def state_tensors(optimizer: Optimizer) -> list[StateTensor]:
    """Return the parameters of an optimizer and its state of each, always in the same order."""
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.append(StateTensor(parameter, None, parameter))
            if parameter in optimizer.state:  # a defaultdict: asking would make an entry
                found += [
                    StateTensor(parameter, str(key), value)
                    for key, value in optimizer.state[parameter].items()
                    if isinstance(value, torch.Tensor)
                ]
    return found


def _high_bits(tensor: torch.Tensor) -> int:
    """Return sign, exponent and high mantissa bits of all elements in one number of `bits`."""
    width = 8 * tensor.element_size()
    mantissa = round(-math.log2(torch.finfo(tensor.dtype).eps))
    one = ((1 << width) - 1) & ~((1 << (mantissa - HIGH_BITS)) - 1)
    count = 64 // width if is_in_words(tensor) else 1
    mask = sum(one << (width * place) for place in range(count))
    return mask - (1 << 64) if mask >= 1 << 63 else mask  # as a signed number
