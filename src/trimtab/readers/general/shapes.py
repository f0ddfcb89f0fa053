"""Shapes: the lines of a log with the same names in them, as tables of numbers.

Lines are read once, in chunks. What a layout means is understood when it is first seen; after that
a line costs one pass of the tokenizer and a look-up.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.readers.general import roles
from trimtab.readers.general.lines import (
    COLUMN,
    EPOCH,
    FRACTION,
    LINE_CHARS,
    TOTAL,
    Field,
    clean,
    cut,
    line_pattern,
    normalise,
    to_number,
    understand,
)
from trimtab.readers.general.roles import Counter
from trimtab.readers.general.tables import Header, find_headers, is_ruler, parse_row

MAX_LAYOUTS = 20_000
"""Layouts remembered at once; the text between the numbers of a log repeats, prose does not."""

MAX_SHAPES = 5_000
"""Shapes kept; a log of prose has a new one in each line."""

MAX_OTHER_LINES = 1 << 20
"""Lines kept of shapes without a loss, a counter or a known signal. The timers and the prose of a
long run must not fill the memory: the longest of these shapes are dropped first."""

NOISE_LINES = 1_000
NOISE_FACTOR = 4
"""A shape in which nothing is known is noise once it has so many lines, and so many times those of
any known shape: what belongs to a record is printed about as often as the record."""


FREQUENT = 50
"""Lines of a shape after which the next of its layouts gets a pattern of its own."""

MAX_FREQUENT = 4
"""Patterns tried for each line."""

TABLE_GAP = 40
"""Lines between the head of a table and a row of it, or between two rows."""

RAY_CHARS = range(4_094, 4_098)
"""Characters after which Ray cuts a line, with its end and without."""

PHASE_WORDS = 4
"""Words of a line that only says what is being done: `--- Validation on dev set ---`."""

_RAY = re.compile(r"^\([\w:]+ pid=\d+[^)]{0,40}\) ")
_RANK = re.compile(r"(?i)(?:\[|\b)(?:rank|default|rk|worker|local_rank)[ :_=-]?(\d{1,5})\b")


# fairseq says `gradient overflow detected`, DeepSpeed `OVERFLOW! ... reducing to 32768`.
_OVERFLOWS = ("gradient overflow detected", "OVERFLOW! ")
_SCALE = re.compile(r", reducing to (\d{1,18})\b")

_DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE].*)?")
_GROUPED = re.compile(r"[-+]?\d{1,3},\d{3}")


@dataclass(slots=True, eq=False)
class Shape:
    """Lines with the same names in them."""

    names: tuple[str, ...]
    words: frozenset[str]
    """Words around the numbers that name none of them."""
    is_table: bool = False
    """Whether the names stand in a line above."""
    lines: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    sample: str = ""
    """Its first line."""
    units: dict[str, str] = field(default_factory=dict)
    """Name to `ms` or `s`, where that follows the number."""
    is_dropped: bool = False
    """Whether its lines are no longer kept."""
    grouped: dict[str, int] = field(default_factory=dict)
    """Name to how many numbers each were like 2,346, from the first one on; 0 if they differ."""
    has_decimal_commas: bool = False
    _cells: list[tuple[str | None, ...]] = field(default_factory=list)
    _blocks: list[FloatArray] = field(default_factory=list)
    _missing: list[BoolArray] = field(default_factory=list)

    @property
    def line_numbers(self) -> IntArray:
        return np.array(self.lines, dtype=np.int64)

    @property
    def is_unnamed(self) -> bool:
        return self.names[0].startswith(COLUMN)

    def add(self, line: int, rank: int, cells: tuple[str | None, ...]) -> None:
        if self.is_dropped:
            return
        self.lines.append(line)
        self.ranks.append(rank)
        self._cells.append(cells)

    def drop(self) -> None:
        """Forget all lines, and keep none from now on."""
        self.is_dropped = True
        self.lines, self.ranks, self._cells, self._blocks = [], [], [], []

    def flush(self) -> None:
        if not self._cells:
            return
        columns = list(zip(*self._cells, strict=True))
        if self.is_table:
            self._missing.append(np.array([[cell is None for cell in row] for row in self._cells]))
        try:
            numbers = [np.fromiter(map(float, cells), np.float64, len(cells)) for cells in columns]
        except (ValueError, TypeError):  # commas, a time of day, a gap
            marks = self._comma_marks(columns)
            numbers = [_parse(*column) for column in zip(columns, marks, strict=True)]
        self._blocks.append(np.stack(numbers, axis=1))
        self._cells = []

    def _comma_marks(self, columns: Sequence[tuple[str | None, ...]]) -> list[str]:
        """Return what each column's commas stand for, a point or nothing: all decide together."""
        commas = [[cell for cell in cells if cell and "," in cell] for cells in columns]
        has_points = any("." in cell for cells in columns for cell in cells if cell)
        decimal = [any(map(_DECIMAL_COMMA.fullmatch, cells)) for cells in commas]
        self.has_decimal_commas |= any(decimal) and not has_points
        start = len(self.lines) - len(self._cells)
        for name, cells, number in zip(self.names, commas, map(len, columns), strict=True):
            is_grouped = len(cells) == number and all(map(_GROUPED.fullmatch, cells))
            if is_grouped and not has_points and not self.has_decimal_commas:
                self.grouped[name] = len(self.lines) if self.grouped.get(name, 0) == start else 0
            elif not self.has_decimal_commas:
                self.grouped[name] = 0
        return ["." if one or self.has_decimal_commas else "" for one in decimal]

    def settle_commas(self, *, are_decimal: bool) -> None:
        """Take 2,346 for 2.346 if it turned out that the text has decimal commas."""
        for name, number in self.grouped.items():
            if are_decimal and roles.counter_class(name) == Counter.NONE:
                self.matrix[:number, self.names.index(name)] /= 1000
                self.grouped[name] = 0

    @property
    def matrix(self) -> FloatArray:
        """One row per line, one column per name."""
        self.flush()
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def _counts_steps(self, name: str) -> bool:
        kind, values = roles.counter_class(name), self.column(name)
        # Of an epoch with one record, another fraction is a share: `correct 700/1000`.
        if kind == Counter.EPOCH:
            return roles.rises(values)
        return kind > Counter.EPOCH and not roles.is_constant(values)

    def settle_totals(self) -> None:
        """Drop the totals of counters; one that moves is the counter: `batch 1/200`, of epoch 1."""
        names = list(self.names)
        for name in self.names:
            if name.endswith(TOTAL):
                counter, total = name.removesuffix(TOTAL), self.column(name)
                moves = len(np.unique(total)) > 2 * len(np.unique(self.column(counter)))
                if moves and roles.counts(total) and EPOCH not in names:
                    names[names.index(counter)] = EPOCH
                    names[names.index(name)] = counter
                elif (
                    roles.counter_class(counter) == Counter.NONE
                    and not any(map(self._counts_steps, self.names))
                    and roles.is_constant(total)
                    and roles.is_even(self.column(counter), restarts=True)
                ):
                    names[names.index(counter)] = FRACTION  # whatever it is called
        keep = [place for place, name in enumerate(names) if not name.endswith(TOTAL)]
        if len(keep) < len(names):
            self._blocks = [self.matrix[:, keep]]
        self.names = tuple(names[place] for place in keep)

    def column(self, name: str) -> FloatArray:
        return self.matrix[:, self.names.index(name)]

    def present(self, name: str) -> BoolArray:
        if not self._missing:
            return np.ones(len(self.lines), dtype=np.bool_)
        if len(self._missing) > 1:
            self._missing = [np.concatenate(self._missing)]
        return ~self._missing[0][:, self.names.index(name)]


@dataclass(frozen=True, slots=True)
class Overflow:
    """A line that says that a gradient overflowed."""

    line: int
    rank: int
    scale: float
    """The loss scale from here on; NaN if it is not said."""


_Known = tuple[Shape, Sequence[int], int, Sequence[tuple[int, float]]]
"""The shape of a layout, which numbers belong to it, the rank that prints it, and factors."""


class ShapeCollector:
    """Collects the shapes of a log."""

    def __init__(self, wanted: Sequence[str | None] = ()) -> None:
        """`wanted` are names that the user asks for."""
        self._wanted = wanted
        self._others: list[Shape] = []
        """Shapes in which nothing is known."""
        self._noise: set[bytes] = set()
        """Lines of dropped shapes, without their digits."""
        self.shapes: dict[tuple[object, ...], Shape] = {}
        self.num_lines = 0
        self.num_long = 0
        self.num_cut = 0
        self.overflows: list[Overflow] = []
        self._known: dict[tuple[str, ...], _Known | None] = {}
        self._understood: dict[tuple[str, ...], _Known | None] = {}
        self._frequent: list[tuple[Callable[[str], re.Match[str] | None], Shape, int]] = []
        """Patterns of frequent layouts; the one that matched last comes first."""
        self._headers: list[Header] = []
        self._header_line = 0
        self._above = ""
        """The line before, if it has no number: names may be in two lines."""
        self._is_summary = False
        """Whether a table of extremes goes on, whose rows are no records."""
        self._phase: frozenset[str] = frozenset()
        """The words of the last line without a number, if they say what is being done."""
        self._header_phase: frozenset[str] = frozenset()
        self.phases: list[tuple[int, bool]] = []
        """Lines that say what is being done from here on: whether it is an evaluation."""
        self._table_shapes: dict[tuple[Header, frozenset[str]], Shape] = {}

    def add_lines(self, lines: Sequence[str]) -> None:
        known, noise = self._known, self._noise
        first = self.num_lines + 1
        numbered: Iterable[tuple[int, str]] = enumerate(lines, first)
        if noise:
            numbered = ((n, line) for n, line in numbered if _without_digits(line) not in noise)
        for number, line in numbered:
            self.num_lines = number
            if len(line) > LINE_CHARS:
                self.num_long += 1
                continue
            line = clean(line)
            if self._headers and self._add_row(line):
                continue
            if self._is_summary:
                self._is_summary = "|" in line or is_ruler(line)
                if self._is_summary:
                    continue
            if self._add_fast(line):
                continue
            if _OVERFLOWS[0] in line or _OVERFLOWS[1] in line:
                self.overflows.append(_overflow(self.num_lines, line))
                continue
            texts, tokens = cut(line)
            if tokens and not texts[-1] and len(_RAY.sub("", line)) in RAY_CHARS:
                texts, tokens = texts[:-1], tokens[:-1]  # the last number may be half of one
            if not tokens:
                self._maybe_header(line)
                continue
            try:
                found = known[texts]
            except KeyError:
                found = self._learn(texts, tokens, line)
            if found is not None:
                shape, positions, rank, scales = found
                if shape.is_dropped:
                    if len(noise) < MAX_LAYOUTS:
                        noise.add(_without_digits(line))
                    continue
                if scales:
                    for place, scale in scales:
                        tokens[place] = repr(round(scale * (to_number(tokens[place]) or 0.0), 6))
                shape.add(self.num_lines, rank, tuple([tokens[place] for place in positions]))
                if not len(shape.lines) % FREQUENT and not scales:
                    self._learn_pattern(texts, tokens, found)
        self.num_lines = first + len(lines) - 1
        for shape in self.shapes.values():
            shape.flush()
        self._drop_others()

    def _drop_others(self) -> None:
        others = {id(shape) for shape in self._others}
        known = [len(shape.lines) for shape in self.shapes.values() if id(shape) not in others]
        enough = max(NOISE_LINES, NOISE_FACTOR * max(known, default=1 << 60))
        for shape in self._others:
            if len(shape.lines) > enough:
                shape.drop()
        num_lines = sum(len(shape.lines) for shape in self._others)
        while num_lines > MAX_OTHER_LINES:
            longest = max(self._others, key=lambda shape: len(shape.lines))
            num_lines -= len(longest.lines)
            longest.drop()

    def _add_fast(self, line: str) -> bool:
        """Add a line by the pattern of a frequent layout; return whether one matched."""
        for place, (match, shape, rank) in enumerate(self._frequent):
            found = match(line)
            if found:
                shape.add(self.num_lines, rank, found.groups())
                if place:
                    self._frequent.insert(0, self._frequent.pop(place))
                return True
        return False

    def _learn_pattern(self, texts: Sequence[str], tokens: Sequence[str], known: _Known) -> None:
        shape, places, rank, _ = known
        pattern = line_pattern(texts, tokens, places)
        if pattern is not None and list(places) == sorted(places):
            self._frequent.insert(0, (pattern.fullmatch, shape, rank))
            del self._frequent[MAX_FREQUENT:]

    def _learn(self, texts: tuple[str, ...], tokens: list[str], line: str) -> _Known | None:
        if len(self._known) > MAX_LAYOUTS:
            self._known.clear()
        normal = normalise(texts)
        times = tuple(to_number(token) is None for token in tokens)
        key = (*normal, str(times))
        if key in self._understood:
            found = self._understood[key]
        else:
            if len(self._understood) > MAX_LAYOUTS:
                self._understood.clear()
            layout = understand(normal, tokens)
            self.num_cut += layout.is_cut
            rank = _RANK.search(texts[0])
            found = None
            if layout.fields:
                shape = self._shape(layout.fields, layout.words, line)
                if shape is not None:
                    scales = [
                        (item.position, item.scale) for item in layout.fields if item.scale != 1
                    ]
                    places = [item.position for item in layout.fields]
                    found = (shape, places, int(rank[1]) if rank else -1, scales)
            self._understood[key] = found
        self._known[texts] = found
        return found

    def _shape(self, fields: Sequence[Field], words: frozenset[str], line: str) -> Shape | None:
        names = tuple(item.name for item in fields)
        for name in names:
            counter = roles.evaluated_counter(name)
            if counter is not None and counter not in names:
                words |= frozenset(roles.words_of(name))  # validation loss at iteration 10
                names = tuple(
                    counter + other[len(name) :] if other in (name, f"{name}{TOTAL}") else other
                    for other in names
                )
        for name in names:
            if f"{name}{TOTAL}" in names and FRACTION not in names and roles.is_phase(name):
                words |= frozenset(roles.words_of(name))  # train (1/12)
                names = tuple(other.replace(name, FRACTION) for other in names)
        phases = [name for name in names if roles.is_phase(name)]
        if phases == list(names[:1]):
            words |= frozenset(roles.words_of(names[0]))  # Val: 2.1s - Loss: 2.5
        marks = words & _TELLING
        key = (names, marks)
        shape = self.shapes.get(key)
        if shape is None and len(self.shapes) < MAX_SHAPES:
            units = {item.name: item.unit for item in fields if item.unit}
            shape = self.shapes[key] = Shape(names, marks, sample=line[:200], units=units)
            if not any(roles.is_known(name) or name in self._wanted for name in names):
                self._others.append(shape)
        return shape

    # Tables

    def _maybe_header(self, line: str) -> None:
        if is_ruler(line):
            return
        headers = find_headers(line, self._above)
        self._above = line
        if not headers and "|" in line and _EXTREMES.issubset(roles.words_of(line)):
            self._is_summary = True
        elif headers:
            self._headers, self._header_line = headers, self.num_lines
            self._header_phase = self._phase
        elif line.strip():
            words = roles.words_of(line)
            self._phase = frozenset(words if len(words) == 1 and roles.is_phase(line) else ())
            if len(words) <= PHASE_WORDS and roles.EVALUATION.union(roles.TRAINING) & set(words):
                self.phases.append((self.num_lines, roles.is_evaluation(line)))

    def _add_row(self, line: str) -> bool:
        if self.num_lines > self._header_line + TABLE_GAP:
            self._headers = []
            return False
        rows = [(h, values) for h in self._headers if (values := parse_row(line, h)) is not None]
        if not rows:
            return False
        header, values = max(rows, key=lambda row: len(row[1]) - row[1].count(None))
        key = (header, self._header_phase)
        shape = self._table_shapes.get(key)
        if shape is None:
            if len(self.shapes) >= MAX_SHAPES:
                return False
            shape = Shape(header.names, key[1], is_table=True, sample=line[:200])
            self._table_shapes[key] = self.shapes[key] = shape
        shape.add(self.num_lines, -1, values)
        self._headers, self._header_line = [header], self.num_lines
        return True


_EXTREMES = frozenset({"min", "max"})
"""Names over a table of extremes, whose other names repeat themselves: a table of records may have
a column `max mem`."""

_TELLING = roles.EVALUATION | frozenset(
    {"train", "training", "trn", "best", "epoch", "end", "average", "summary", "total", "final"}
)


def _without_digits(line: str) -> bytes:
    """Return a line without its digits; of bytes that takes a tenth of the time of text."""
    return line.encode("utf-8", "replace").translate(None, b"0123456789")


def _overflow(line: int, text: str) -> Overflow:
    rank, scale = _RANK.search(text), _SCALE.search(text)
    return Overflow(line, int(rank[1]) if rank else -1, float(scale[1]) if scale else np.nan)


def _parse(cells: Sequence[str | None], mark: str) -> FloatArray:
    texts = [cell and cell.replace(",", mark) for cell in cells]
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return np.array([to_number(text) if text else None for text in texts], dtype=np.float64)
