"""MemoryWatch: finds a bit that flipped in memory between two updates.

After an update the bits of weights and optimizer state are summed as whole numbers; before the next
one they are summed again. Between the two nothing but code can write them, and code counts: an
operation of torch raises the tensor's version, an assignment to `.data` moves its address. Each
tensor is laid out as a square of 64-bit words, and its rows and its columns are summed. If version
and address are the same and sums differ, there are two explanations:

    one row and one column differ,    one bit of one element flipped, and made it at least 4 times
    by +-2**k, k is a high bit        as large or small: memory, not code
    anything else                     `p.data.clamp_(...)`, a NumPy view, a broken kernel: not known

Only the first is proof. Rows and columns fix the element, whatever the bit. A second sum that is
weighted by the index would not: modulo 2**64 a difference of 2**k keeps 64 - k bits of the index,
2 for the highest exponent bit, and a column that is halved passes by chance.

What counts as a high bit is every bit of the exponent but the lowest. Doubling, halving, negating
or setting one element is what code does, and such a flip does less harm than an undo costs. Vectors
of fewer than 64 elements (gates, scales of heads) are set by hand, one element at a time: a flip is
not proven there. The second explanation marks the tensor for good: what code writes past torch's
counters will one day change by a power of two as well.

Sums are computed on the device, and nothing here is read or built on the host. Where the state is
too large to sum all of it twice in every step, each step takes the next chunk.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from trimtab.live.ranks.shards import bits, has_bits, is_in_words
from trimtab.state.host_copy import WriteCount, detached, local, write_count

CHUNK_BYTES = 2 << 20
"""State that is summed in each step whatever its size. Source: two sums of 8 MB cost 0.8 % of a
step of a model with 10 million parameters on one CPU core, so 2 MB cost 0.2 %; rows and columns
take 2.1 times as long as one sum (measured for 2 to 8 MB)."""

MAX_CHUNKS = 64
"""A larger state is summed in at most this many steps."""

MIN_ELEMENTS = 64
"""Elements of a tensor in which a flipped bit is proven. Chosen: as many heads, gates or experts as
people set one by one; a flip there is improbable, as they hold next to nothing of a state."""

COPIED_WORDS = 1024
"""Words of a tensor that is small enough to be one row: its columns are its words. Chosen: 8 kB."""


class StateTensor(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class _Watched:
    """A tensor as it was after an update."""

    index: int
    """Its index among all tensors of the optimizer."""
    part: StateTensor
    written: WriteCount

    @property
    def is_unwritten(self) -> bool:
        """Whether no code that counts has written it since."""
        return write_count(self.part.tensor) == self.written


class _LayoutKey(NamedTuple):
    """What the layout of a tensor depends on: code may replace it by a larger one."""

    tensor_index: int
    num_elements: int
    dtype: torch.dtype
    is_in_words: bool
    """Whether 8 bytes are summed at a time, which the address of a tensor may not allow."""

    @classmethod
    def from_watched(cls, watched: _Watched) -> "_LayoutKey":
        part = local(watched.part.tensor)
        return cls(watched.index, part.numel(), part.dtype, is_in_words(part))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What is the same whenever a chunk is summed; on the device, without a copy from the host."""

    row_lengths: list[int]
    column_lengths: list[int]
    row_owner: torch.Tensor
    """The tensor in the chunk that each row belongs to."""
    column_owner: torch.Tensor
    indices: torch.Tensor
    """The index of each tensor of the chunk among all tensors of the optimizer."""
    masks: torch.Tensor
    """The bits of each tensor that are proof of a flip."""
    is_weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of all rows and of all columns of a chunk."""

    rows: torch.Tensor
    columns: torch.Tensor


class MemoryWatch:
    """Sums the bits of one optimizer's weights and state after an update and before the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chunk: list[_Watched] = []
        self._sums: _Sums | None = None
        self._layout: _Layout
        self._next = 0
        """The index of the first tensor of the next chunk."""
        self._by_code = torch.zeros(0, dtype=torch.bool, device=device)
        """The tensors that code writes behind torch's back."""
        self._layouts: dict[tuple[_LayoutKey, ...], _Layout] = {}
        self._nothing = torch.zeros(4, device=device)

    def after_update(self, parts: Sequence[StateTensor]) -> None:
        """Sum the bits of the next chunk of the state."""
        if len(self._by_code) != len(parts):  # the first update, or parameters were added
            self._by_code = torch.zeros(len(parts), dtype=torch.bool, device=self._device)
            self._next = 0
            self._layouts.clear()
        self._chunk = [
            _Watched(index, parts[index], write_count(parts[index].tensor))
            for index in self._choose(parts)
        ]
        self._sums = None
        if self._chunk:
            self._sums = self._join([_square(watched.part.tensor) for watched in self._chunk])
            self._layout = self._find_layout()

    def before_update(self) -> torch.Tensor:
        """Compare; returns `MEMORY_FIELDS`.

        The index counts from 1 and is a sum: it names the tensor only if there is one. Moments that
        were written are not counted: code writes weights past torch's counters, not those.
        """
        before, self._sums = self._sums, None
        if before is None:
            return self._nothing
        layout = self._layout
        rows_of = before.rows.split(layout.row_lengths)
        columns_of = before.columns.split(layout.column_lengths)
        drawn = zip(self._chunk, rows_of, columns_of, strict=True)
        # What code has written is as it was: a mask of it would have to be copied to the device.
        now = [
            _square(watched.part.tensor) if watched.is_unwritten else _Sums(rows, columns)
            for watched, rows, columns in drawn
        ]
        after = self._join(now)
        rows, columns = after.rows - before.rows, after.columns - before.columns
        zeros = torch.zeros_like(layout.indices)
        num_rows = zeros.index_add(0, layout.row_owner, (rows != 0).long())
        num_columns = zeros.index_add(0, layout.column_owner, (columns != 0).long())
        difference = zeros.index_add(0, layout.row_owner, rows).abs()
        has_changed = (num_rows > 0) | (num_columns > 0)
        is_one_element = (num_rows == 1) & (num_columns == 1)
        is_one_bit = (difference & (difference - 1) == 0) & (difference & layout.masks != 0)
        is_flip = is_one_element & is_one_bit
        known = self._by_code.index_select(0, layout.indices)
        self._by_code.index_copy_(0, layout.indices, known | (has_changed & ~is_flip))
        flipped = is_flip & ~known
        written = has_changed & ~flipped & layout.is_weight
        index = (flipped * (layout.indices + 1)).sum()
        return torch.stack((flipped.sum(), flipped.any().long(), written.sum(), index)).float()

    def forget(self) -> None:
        """Drop what was summed: the state has been restored from a snapshot."""
        self._chunk, self._sums = [], None

    def _choose(self, parts: Sequence[StateTensor]) -> Iterator[int]:
        """Yield the indices of the next chunk, in turn."""
        sizes = [local(part.tensor).nbytes for part in parts]
        bytes_left = max(CHUNK_BYTES, sum(sizes) // MAX_CHUNKS)
        for _ in parts:
            index = self._next
            self._next = (index + 1) % len(parts)
            if _is_watched(parts[index]):
                bytes_left -= sizes[index]
                yield index
            if bytes_left <= 0:
                return

    def _join(self, squares: Sequence[_Sums]) -> _Sums:
        return _Sums(
            torch.cat([sums.rows.to(self._device) for sums in squares]),
            torch.cat([sums.columns.to(self._device) for sums in squares]),
        )

    def _find_layout(self) -> _Layout:
        keys = [_LayoutKey.from_watched(watched) for watched in self._chunk]
        if (known := self._layouts.get(tuple(keys))) is not None:
            return known
        shapes = [_shape(_words(watched.part.tensor).numel()) for watched in self._chunk]
        rows = [shape.num_rows for shape in shapes]
        columns = [shape.width for shape in shapes]
        layout = _Layout(
            row_lengths=rows,
            column_lengths=columns,
            row_owner=self._filled(range(len(keys)), rows),
            column_owner=self._filled(range(len(keys)), columns),
            indices=self._filled([key.tensor_index for key in keys]),
            masks=self._filled([_proven_bits(watched.part) for watched in self._chunk]),
            is_weight=self._filled([watched.part.key is None for watched in self._chunk]).bool(),
        )
        self._layouts[tuple(keys)] = layout
        return layout

    def _filled(self, values: Sequence[int], lengths: Sequence[int] = ()) -> torch.Tensor:
        """Return each value as often as its length says, filled in by the device."""
        pairs = zip(values, lengths or [1] * len(values), strict=True)
        return torch.cat(
            [torch.full((n,), v, dtype=torch.int64, device=self._device) for v, n in pairs]
        )


def _is_watched(part: StateTensor) -> bool:
    is_small = local(part.tensor).numel() < MIN_ELEMENTS
    return has_bits(part.tensor) and (part.key is None or not is_small)


class _Shape(NamedTuple):
    """How the words of a tensor are laid out; the last row may be shorter."""

    width: int
    num_rows: int


def _shape(num_words: int) -> _Shape:
    width = num_words if num_words <= COPIED_WORDS else 1 << (num_words.bit_length() // 2)
    return _Shape(width, -(-num_words // width))


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part with its dimensions sorted, such as of channels last."""
    part = detached(tensor)
    if part.is_contiguous():
        return part
    order = sorted(range(part.dim()), key=part.stride, reverse=True)
    return part.permute(order).contiguous()  # a copy only of what has gaps


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as a vector of whole numbers, in the order of its memory."""
    return bits(_in_memory_order(tensor)).view(-1)


def _square(tensor: torch.Tensor) -> _Sums:
    """Sum the rows and the columns of a tensor's words."""
    words = _words(tensor)
    shape = _shape(words.numel())
    if shape.num_rows == 1:
        return _Sums(words.sum(dtype=torch.int64).view(1), words)
    num_whole = words.numel() // shape.width
    square = words[: num_whole * shape.width].view(num_whole, shape.width)
    rows = square.sum(dim=1, dtype=torch.int64)
    columns = square.sum(dim=0, dtype=torch.int64)
    if num_whole < shape.num_rows:
        rest = words[num_whole * shape.width :]
        rows = torch.cat((rows, rest.sum(dtype=torch.int64).view(1)))
        columns[: rest.numel()] += rest
    return _Sums(rows, columns)


def _proven_bits(part: StateTensor) -> int:
    """Return the bits whose flip is proof, of all elements in one number of `bits`.

    All of the exponent but its lowest; in optimizer state also the sign, since nobody negates one
    element of a second moment and the next update makes a NaN of it.
    """
    tensor = _in_memory_order(part.tensor)
    if tensor.numel() < MIN_ELEMENTS:
        return 0
    width = 8 * tensor.element_size()
    mantissa = round(-math.log2(torch.finfo(tensor.dtype).eps))
    sign = 1 << (width - 1)
    one = sign - (1 << (mantissa + 1)) + (0 if part.key is None else sign)
    count = 64 // width if is_in_words(tensor) else 1
    mask = sum(one << (width * place) for place in range(count))
    return mask - (1 << 64) if mask >= 1 << 63 else mask  # as a signed number
