"""MemoryWatch: finds a bit that flipped in memory between two updates.

After an update the bits of weights and optimizer state are summed as whole numbers; before the next
one they are summed again. Between the two nothing but code can write them, and code counts: an
operation of torch raises the tensor's version, an assignment to `.data` moves its address. Each
tensor is cut into pieces, matrices of 64-bit words, whose rows and columns are summed. If version
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

On an accelerator nothing here is read or built on the host in a step. Where the state is in host
memory, small pieces are copied instead of summed, which takes a quarter of the time. Each update
takes the next pieces, as many as a share of the time of a step allows: all, where steps are long.
"""

import ctypes
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import Optimizer

from trimtab.live.measure.time_budget import Stopwatch, TimeBudget
from trimtab.live.ranks.shards import bits, has_bits
from trimtab.state.host_copy import WITH_MEMORY, WriteCount, detached, local, write_count

IntArray = npt.NDArray[Any]

TIME_SHARE = 0.003
"""Share of a step's time for both sums of all pieces of one update."""

CHUNK_BYTES = 2 << 20
"""State that is summed in each step whatever it takes. Source: two sums of 8 MB cost 0.8 % of a
step of a model with 10 million parameters on one CPU core, so 2 MB cost 0.2 %."""

HOST_PIECE_BYTES, PIECE_BYTES = 1 << 20, 32 << 20
"""The largest piece, in host memory and on an accelerator. Source: the second sum finds 1 MB in the
cache of a core; a kernel launch takes as long as an accelerator needs to read 16 MB."""

COPIED_BYTES = 1 << 18
"""The largest piece in host memory that is copied. Source: up to there a copy takes a quarter of
the time of both sums; above, most of a large state would be in memory once more."""

MIN_ELEMENTS = 64
"""Elements of a tensor in which a flipped bit is proven. Chosen: as many heads, gates or experts as
people set one by one; a flip there is improbable, as they hold next to nothing of a state."""

ROW_WORDS = 1024
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


class Fingerprint(NamedTuple):
    """The tensors of an optimizer, and what torch has counted of each."""

    parts: Sequence[StateTensor]
    """The same object as before, if the tensors are the same ones."""
    written: Sequence[WriteCount]

    @property
    def of_state(self) -> list[WriteCount]:
        """What was counted of the tensors that are no parameters."""
        pairs = zip(self.parts, self.written, strict=True)
        return [written for part, written in pairs if part.key is not None]


class StateList:
    """The tensors of an optimizer, listed anew only when they are other ones."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._ids: list[int] = []
        self._parts: list[StateTensor] = []
        self._tensors: list[torch.Tensor] = []
        self._are_plain = True
        """Whether every tensor has a version and an address of its own."""

    @property
    def parts(self) -> list[StateTensor]:
        """All tensors, in the order of `state_tensors`; the same list while they are the same."""
        optimizer, kind = self._optimizer, torch.Tensor
        ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
        ids += [
            id(value)
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for value in state.values()
            if isinstance(value, kind)
        ]
        if ids != self._ids:
            self._ids, self._parts = ids, state_tensors(optimizer)
            self._tensors = [part.tensor for part in self._parts]
            self._are_plain = all(
                type(t) in WITH_MEMORY and t.layout is torch.strided and not t.is_inference()
                for t in self._tensors
            )
        return self._parts

    def fingerprint(self) -> Fingerprint:
        """Count the writes of each tensor, without reading any."""
        parts = self.parts
        if not self._are_plain:
            return Fingerprint(parts, [write_count(t) for t in self._tensors])
        # As `write_count` does, without a call for each of them.
        counted: Any = [(t._version, t.data_ptr()) for t in self._tensors]
        return Fingerprint(parts, counted)


class _Piece(NamedTuple):
    """A part of a tensor as a matrix of whole numbers, which is a view of its memory."""

    owner: int
    """The index of its tensor among all tensors of the optimizer."""
    words: torch.Tensor


class MemoryWatch:
    """Sums the bits of one optimizer's weights and state after an update and before the next."""

    def __init__(self, device: torch.device, budget: TimeBudget, *, is_on_host: bool) -> None:
        """Watch within a budget of time; `is_on_host` if all of the state is in host memory."""
        self._budget = budget
        self._stopwatch = Stopwatch(device)
        self._is_on_host = is_on_host
        self._bits = _HostBits(device) if is_on_host else _DeviceBits(device)
        self._state = Fingerprint([], [])
        """The state after the last update."""
        self._addresses: list[int] = []
        """Addresses of the tensors when they were cut into pieces."""
        self._ends: list[int] = []
        """The bytes of all pieces up to the end of each."""
        self._next = 0
        """The first piece that is summed after the next update."""
        self._num_bytes = 0
        """Bytes that were summed after the last update."""

    def after_update(self, now: Fingerprint) -> None:
        """Sum the bits of the next pieces of the state."""
        addresses = [address for _, address in now.written]
        if now.parts is not self._state.parts or addresses != self._addresses:
            self._cut(now, addresses)
        self._state = now
        if not self._ends or self._ends[-1] <= CHUNK_BYTES:  # all of it, whatever it takes
            self._bits.sum(0, len(self._ends))
            return
        self._stopwatch.start()
        self._bits.sum(*self._choose())
        self._stopwatch.stop()

    def before_update(self, now: Fingerprint) -> torch.Tensor | None:
        """Compare; returns `MEMORY_FIELDS`, or None if it is known that nothing was found.

        The index counts from 1 and is a sum: it names the tensor only if there is one. Moments that
        were written are not counted: code writes weights past torch's counters, not those.
        """
        before = self._state
        if now.parts is not before.parts:
            self.forget()
            return None
        pairs = enumerate(zip(now.written, before.written, strict=True))
        is_same = now.written == before.written
        return self._bits.compare(() if is_same else {i for i, (a, b) in pairs if a != b})

    def forget(self) -> None:
        """Drop what was summed: the state has been restored from a snapshot."""
        self._bits.sum(0, 0)

    def _choose(self) -> tuple[int, int]:
        """Return the first of the next pieces and the one after them; called after each update."""
        speed = self._num_bytes / (2 * max(self._stopwatch.seconds, 1e-9))  # of both sums
        # In this order: the second is not a number until a step and a sum were measured.
        room = max(CHUNK_BYTES, self._budget.seconds_per_step * speed)
        first = self._next if self._next < len(self._ends) else 0
        done = self._ends[first - 1] if first else 0
        self._next = min(bisect_left(self._ends, done + room) + 1, len(self._ends))
        self._num_bytes = self._ends[self._next - 1] - done
        return first, self._next

    def _cut(self, now: Fingerprint, addresses: list[int]) -> None:
        """Look up what stays the same from update to update."""
        pieces = [
            _Piece(index, words)
            for index, part in enumerate(now.parts)
            if addresses[index]
            and _is_watched(part)
            # A package may keep the state of a parameter elsewhere, where no address can be read.
            and (not self._is_on_host or local(part.tensor).device.type == "cpu")
            for words in _matrices(part.tensor, self._bits.piece_bytes)
        ]
        self._bits.cut(pieces, now.parts)
        self._ends = list(accumulate(piece.words.nbytes for piece in pieces))
        self._addresses = addresses


class _Sums(NamedTuple):
    """The sums of the rows and of the columns of a piece."""

    rows: Any
    columns: Any


@dataclass(slots=True)
class _Change:
    """How the rows and columns of a tensor have changed, in all of its pieces."""

    num_rows: int = 0
    num_columns: int = 0
    difference: int = 0

    def add(self, rows: IntArray, columns: IntArray) -> None:
        """Add the differences of a piece."""
        self.num_rows += int(np.count_nonzero(rows))
        self.num_columns += int(np.count_nonzero(columns))
        self.difference += int(rows.sum())

    def is_flip(self, mask: int) -> bool:
        """Return whether one of these bits of one element is another one."""
        is_one_element = self.num_rows == 1 and self.num_columns == 1
        size = abs(self.difference)
        return is_one_element and size & (size - 1) == 0 and size & mask != 0


class _HostPiece(NamedTuple):
    """A piece in host memory, seen by its address: to be read only while that is right."""

    owner: int
    words: IntArray
    is_copied: bool
    memory: torch.UntypedStorage
    """Keeps the address from being given to another tensor, which may be shorter."""
    memory_bytes: int
    """Of `memory`, when the piece was cut: its storage may be made shorter where it is."""


class _HostBits:
    """The bits of a state in host memory: plain numbers, no operation of torch."""

    piece_bytes = HOST_PIECE_BYTES

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pieces: list[_HostPiece] = []
        self._masks: dict[int, int] = {}
        self._weights: set[int] = set()
        self._by_code: set[int] = set()
        """The tensors that code writes behind torch's back."""
        self._num_parts = 0
        self._before: list[tuple[_HostPiece, Any]] = []
        """The pieces after the last update: the bytes of each, or its sums."""

    def cut(self, pieces: Sequence[_Piece], parts: Sequence[StateTensor]) -> None:
        """Sum these pieces from here on."""
        self._pieces = [
            _HostPiece(
                *(owner, _by_address(words), words.nbytes <= COPIED_BYTES),
                memory=words.untyped_storage(),
                memory_bytes=words.untyped_storage().nbytes(),
            )
            for owner, words in pieces
        ]
        self._masks = _masks(pieces, parts)
        self._weights = {index for index, part in enumerate(parts) if part.key is None}
        if len(parts) != self._num_parts:
            self._num_parts, self._by_code = len(parts), set()

    def sum(self, first: int, last: int) -> None:
        self._before = [
            (piece, piece.words.tobytes() if piece.is_copied else _sums(piece.words))
            for piece in self._pieces[first:last]
            if piece.memory.nbytes() == piece.memory_bytes
        ]

    def compare(self, written: Collection[int]) -> torch.Tensor | None:
        """Return `MEMORY_FIELDS` without the tensors that code has written; None for nothing."""
        found = [
            (piece, then)
            for piece, then in self._before
            if piece.owner not in written
            and piece.memory.nbytes() == piece.memory_bytes
            and (
                piece.words.tobytes() != then
                if piece.is_copied
                else _rows(piece.words).tobytes() != then.rows.tobytes()
            )
        ]
        self._before = []
        if not found:
            return None
        changes: dict[int, _Change] = {}
        for piece, then in found:
            now, before = _sums(piece.words), then
            if piece.is_copied:
                before = _sums(np.frombuffer(then, piece.words.dtype).reshape(piece.words.shape))
            change = changes.setdefault(piece.owner, _Change())
            change.add(now.rows - before.rows, now.columns - before.columns)
        flips = {index for index, change in changes.items() if change.is_flip(self._masks[index])}
        flipped = flips - self._by_code
        self._by_code |= changes.keys() - flips
        num_written = len((changes.keys() - flipped) & self._weights)
        values = (len(flipped), bool(flipped), num_written, sum(index + 1 for index in flipped))
        return torch.tensor(values, dtype=torch.float32, device=self._device)


def _rows(words: IntArray) -> IntArray:
    rows: IntArray = np.add.reduce(words, axis=1, dtype=np.int64)
    return rows


def _columns(words: IntArray) -> IntArray:
    columns: IntArray = np.add.reduce(words, axis=0, dtype=np.int64)
    return columns


def _sums(words: IntArray) -> _Sums:
    return _Sums(_rows(words), _columns(words))


def _by_address(words: torch.Tensor) -> IntArray:
    """View a matrix in host memory. `Tensor.numpy` would keep its storage from being resized."""
    size = words.element_size()
    strides = [size * stride for stride in words.stride()]
    lengths = [(n - 1) * stride for n, stride in zip(words.shape, strides, strict=True)]
    memory: Any = (ctypes.c_char * (sum(lengths) + size)).from_address(words.data_ptr())
    return np.ndarray(tuple(words.shape), f"i{size}", memory, strides=strides)


class _DeviceBits:
    """The bits of a state on a device: nothing is read on the host, or copied from there."""

    piece_bytes = PIECE_BYTES

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pieces: list[_Piece] = []
        self._row_owners = self._column_owners = self._filled([])
        """The tensor that each row, or column, of all pieces belongs to."""
        self._row_ends = self._column_ends = [0]
        """The rows, or columns, of all pieces up to the end of each."""
        self._masks = self._indices = self._filled([])
        """The bits of each tensor that are proof of a flip, and its index from 1."""
        self._is_weight = self._by_code = self._filled([]).bool()
        """Whether each tensor is a weight, and whether code writes it behind torch's back."""
        self._first = 0
        self._before: list[_Sums] = []
        """The sums of the pieces from the first on, after the last update."""

    def cut(self, pieces: Sequence[_Piece], parts: Sequence[StateTensor]) -> None:
        self._pieces = list(pieces)
        owners = [piece.owner for piece in pieces]
        num_rows = [piece.words.shape[0] for piece in pieces]
        num_columns = [piece.words.shape[1] for piece in pieces]
        self._row_owners = self._filled(owners, num_rows)
        self._column_owners = self._filled(owners, num_columns)
        self._row_ends = [0, *accumulate(num_rows)]
        self._column_ends = [0, *accumulate(num_columns)]
        masks = _masks(pieces, parts)
        signed = [_signed(masks.get(index, 0)) for index in range(len(parts))]
        self._masks = self._filled(signed)
        self._indices = self._filled(range(1, len(parts) + 1))
        self._is_weight = self._filled([part.key is None for part in parts]).bool()
        if len(parts) != len(self._by_code):
            self._by_code = torch.zeros_like(self._is_weight)

    def sum(self, first: int, last: int) -> None:
        self._first = first
        self._before = [self._sums(piece) for piece in self._pieces[first:last]]

    def compare(self, written: Collection[int]) -> torch.Tensor | None:
        before, self._before = self._before, []
        if not before:
            return None
        first, last = self._first, self._first + len(before)
        pairs = zip(self._pieces[first:last], before, strict=True)
        # What code has written is as it was: a mask of it would have to be copied to the device.
        now = [then if piece.owner in written else self._sums(piece) for piece, then in pairs]
        rows = torch.cat([s.rows for s in now]) - torch.cat([s.rows for s in before])
        columns = torch.cat([s.columns for s in now]) - torch.cat([s.columns for s in before])
        row_owners = self._row_owners[self._row_ends[first] : self._row_ends[last]]
        column_owners = self._column_owners[self._column_ends[first] : self._column_ends[last]]
        zeros = torch.zeros_like(self._indices)
        num_rows = zeros.index_add(0, row_owners, (rows != 0).long())
        num_columns = zeros.index_add(0, column_owners, (columns != 0).long())
        size = zeros.index_add(0, row_owners, rows).abs()
        has_changed = (num_rows > 0) | (num_columns > 0)
        is_one_element = (num_rows == 1) & (num_columns == 1)
        is_flip = is_one_element & (size & (size - 1) == 0) & (size & self._masks != 0)
        flipped = is_flip & ~self._by_code
        self._by_code = self._by_code | (has_changed & ~is_flip)
        num_written = (has_changed & ~flipped & self._is_weight).sum()
        index = (flipped * self._indices).sum()
        return torch.stack((flipped.sum(), flipped.any().long(), num_written, index)).float()

    def _sums(self, piece: _Piece) -> _Sums:
        rows = piece.words.sum(dim=1, dtype=torch.int64)
        columns = piece.words.sum(dim=0, dtype=torch.int64)
        return _Sums(rows.to(self._device), columns.to(self._device))

    def _filled(self, values: Sequence[int], lengths: Sequence[int] = ()) -> torch.Tensor:
        """Return each value as often as its length says, filled in by the device."""
        pairs = zip(values, lengths or [1] * len(values), strict=True)
        filled = [torch.full((n,), v, dtype=torch.int64, device=self._device) for v, n in pairs]
        return torch.cat(filled or [torch.zeros(0, dtype=torch.int64, device=self._device)])


def _is_watched(part: StateTensor) -> bool:
    is_small = local(part.tensor).numel() < MIN_ELEMENTS
    return has_bits(part.tensor) and (part.key is None or not is_small)


def _matrices(tensor: torch.Tensor, most_bytes: int) -> list[torch.Tensor]:
    """View this rank's part of a tensor as matrices of whole numbers, in the order of its memory.

    Of a tensor with gaps between its rows, its own rows; none if it has other gaps.
    """
    part = detached(tensor)
    if not part.is_contiguous():  # such as channels last
        part = part.permute(sorted(range(part.dim()), key=part.stride, reverse=True))
    numbers = bits(part)
    if not part.is_contiguous():
        shape = (len(numbers), -1) if part.dim() > 1 else (1, -1)
        try:
            return [numbers.view(shape)]
        except RuntimeError:
            return []
    words = numbers.view(-1)
    if len(words) <= ROW_WORDS:
        return [words.view(1, -1)]
    most_words = most_bytes // words.element_size()
    width = 1 << (min(len(words), most_words).bit_length() // 2)
    num_whole = len(words) // width * width
    pieces = list(words[:num_whole].view(-1, width).split(max(most_words // width, 1)))
    return pieces if num_whole == len(words) else [*pieces, words[num_whole:].view(1, -1)]


def _masks(pieces: Sequence[_Piece], parts: Sequence[StateTensor]) -> dict[int, int]:
    """Return the bits whose flip is proof, by the index of each tensor that has pieces."""
    return {p.owner: _proven_bits(parts[p.owner], p.words.element_size()) for p in pieces}


def _proven_bits(part: StateTensor, word_bytes: int) -> int:
    """Return the bits whose flip is proof, of all elements in one word.

    All of the exponent but its lowest; in optimizer state also the sign, since nobody negates one
    element of a second moment and the next update makes a NaN of it.
    """
    tensor = local(part.tensor)
    if tensor.numel() < MIN_ELEMENTS:
        return 0
    width = 8 * tensor.element_size()
    mantissa = round(-math.log2(torch.finfo(tensor.dtype).eps))
    sign = 1 << (width - 1)
    one = sign - (1 << (mantissa + 1)) + (0 if part.key is None else sign)
    return sum(one << place for place in range(0, 8 * word_bytes, width))


def _signed(mask: int) -> int:
    """Return the same 64 bits as torch has them."""
    return mask - (1 << 64) if mask >= 1 << 63 else mask
