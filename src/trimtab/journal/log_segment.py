"""An open segment of a journal: parses its lines into records and other entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from trimtab.core.block import Block, BoolArray, FloatArray, IntArray, Record
from trimtab.journal.header import AXES, Axis
from trimtab.journal.lines import Damage, DamageKind, Entry, decode_line, parse_entry, schema_of


@dataclass(slots=True)
class ColumnTarget:
    """Where the rows of one signal go; no mask if every row is recorded."""

    values: FloatArray
    present: BoolArray | None


@dataclass(slots=True)
class ReadLosses:
    """What could not be read: whole rows, or rows of one signal."""

    rows: list[slice] = field(default_factory=list)
    values: list[tuple[str, slice]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """What was read from an open segment; a sealed one is read by the same names."""

    file: str
    block: Block
    """The records; events are among the entries."""
    entries: tuple[Entry, ...]
    damage: tuple[Damage, ...]

    @property
    def rows(self) -> int:
        return len(self.block)

    @property
    def last_tick(self) -> int:
        """The highest tick, -1 if there are no records."""
        return int(self.block.tick[-1]) if self.rows else -1

    @property
    def schema(self) -> int:
        """The highest schema that it names."""
        return schema_of(self.entries)

    def names(self) -> dict[str, bool]:
        """Return its signals, and whether each was recorded in every row."""
        return {name: bool(column.present.all()) for name, column in self.block.columns.items()}

    def ranges(self) -> dict[str, Axis]:
        """Return its axes that are a range."""
        found = {name: Axis.of(values) for name, values in self._axes.items() if len(values)}
        return {name: axis for name, axis in found.items() if axis is not None}

    def read(self, axes: Mapping[str, IntArray], columns: Mapping[str, ColumnTarget]) -> ReadLosses:
        """Fill the requested axes, the tick among them, and the requested columns."""
        known = self._axes
        for axis, out in axes.items():
            out[:] = known[axis]
        for name, target in columns.items():
            column = self.block.columns[name]
            target.values[:] = column.values
            if target.present is not None:
                target.present[:] = column.present
        return ReadLosses()

    @property
    def _axes(self) -> dict[str, IntArray]:
        block = self.block
        axes = (block.step, block.tick, block.attempt, block.data_position)
        return dict(zip(AXES, axes, strict=True))


MAX_LINE_BYTES = 2**24
"""Bytes of a line; a longer one is damaged. Chosen: 100,000 signals in one record have 4 MB."""


class LogParser:
    """Parses the bytes of an open segment as they arrive, line by line.

    A line is parsed once its newline has arrived, so a line is never read half-written.
    """

    def __init__(self, file: str, after: int = -1) -> None:
        """Records up to the tick `after` are known already and are skipped."""
        self._file = file
        self._after = after
        self._step = 0
        self._rest = b""
        self._offset = 0  # of the rest in the file
        self._records: list[Record] = []
        self._entries: list[Entry] = []
        self._entry_numbers: set[int] = set()
        self._damage: list[Damage] = []
        self._bad_lines = 0
        self._bad_from = 0

    @property
    def fed(self) -> int:
        """How many bytes of the file `feed` has received."""
        return self._offset + len(self._rest)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the file."""
        # The last piece has no newline yet: it waits for the bytes that complete it.
        *lines, self._rest = (self._rest + data).split(b"\n")
        is_cut = len(self._rest) > MAX_LINE_BYTES
        if is_cut:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            entry = decode_line(line)
            if entry is None:
                if not self._bad_lines:
                    self._bad_from = self._offset
                self._bad_lines += 1
            else:
                self._report_bad_lines()
                self._add(entry)
            self._offset += len(line) + 1
        self._offset -= is_cut

    def finish(self) -> None:
        """Report what is incomplete, once all bytes have arrived."""
        self._report_bad_lines()
        if self._rest:
            self._report(
                DamageKind.TORN_TAIL,
                f"{self._file} ends in an incomplete line of {len(self._rest)} bytes: "
                "the writer was stopped in the middle of it, or is still writing",
            )
        # Records are numbered by their ticks; the other lines count by themselves, so that one that
        # is gone is missed.
        lost = max(self._entry_numbers, default=-1) + 1 - len(self._entry_numbers)
        if lost:
            self._report(
                DamageKind.LOST_LINES,
                f"{self._file} lacks {lost} of its lines that are not records, by their numbers",
            )

    def pop(self) -> LogSegment:
        """Return and forget what was parsed since the last call."""
        records = self._in_order()
        segment = LogSegment(
            file=self._file,
            block=Block.from_records(records),
            entries=tuple(sorted(self._entries, key=_number)),
            damage=tuple(self._damage),
        )
        if records:
            self._after = records[-1].tick
        self._records, self._entries, self._damage = [], [], []
        return segment

    def _add(self, entry: Entry) -> None:
        tick = self._records[-1].tick if self._records else self._after
        record, others = parse_entry(entry, tick + 1, self._step)
        if record is not None:
            self._records.append(record)
            self._step = record.step
        for other in others:
            number = other.get("note")
            if number is None or number not in self._entry_numbers:
                self._entries.append(other)
                self._entry_numbers.update([] if number is None else [number])
            else:
                self._report(
                    DamageKind.REPEATED,
                    f"{self._file} holds its line number {number} twice; the first was kept",
                )

    def _in_order(self) -> list[Record]:
        """Sort the records by tick; a part of the file that is there twice counts once."""
        records = self._records
        rising = all(one.tick < other.tick for one, other in pairwise(records))
        if rising and (not records or records[0].tick > self._after):
            return records
        first_seen: dict[int, Record] = {}
        repeated = set()
        for record in records:
            if record.tick <= self._after or record.tick in first_seen:
                repeated.add(record.tick)
            else:
                first_seen[record.tick] = record
        if repeated:
            self._report(
                DamageKind.REPEATED,
                f"{self._file} holds {len(repeated)} records twice or too late, between the ticks "
                f"{min(repeated)} and {max(repeated)}; the first were kept",
                ticks=(min(repeated), max(repeated)),
            )
        return [first_seen[tick] for tick in sorted(first_seen)]

    def _report_bad_lines(self) -> None:
        if self._bad_lines:
            self._report(
                DamageKind.DAMAGED_LINES,
                f"{self._file} has {self._bad_lines} damaged lines in the bytes "
                f"{self._bad_from} to {self._offset}; they were left out",
            )
            self._bad_lines = 0

    def _report(
        self, kind: DamageKind, sentence: str, ticks: tuple[int, int] | None = None
    ) -> None:
        damage = Damage(kind=kind, file=self._file, sentence=sentence, ticks=ticks)
        self._damage.append(damage)


def _number(entry: Entry) -> float:
    # The sort is stable: entries without a number (the rest of a line) go to the end in order.
    number = entry.get("note")
    return float("inf") if number is None else number
