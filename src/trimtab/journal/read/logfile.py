"""The open file of a journal: lines in, records and notes out, damage told."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from trimtab.core.block import Block, IntArray
from trimtab.core.builder import BlockBuilder, Record
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.format.entries import schema_of, understand
from trimtab.journal.format.lines import Entry, decode
from trimtab.journal.read.part import Losses, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """What was read from an open file."""

    file: str
    block: Block
    """The records, without events: those are among the notes."""
    notes: tuple[Entry, ...]
    damage: tuple[Damage, ...]

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return len(self.block)

    @property
    def last_tick(self) -> int:
        """The highest tick in it, -1 if it holds no records."""
        return int(self.block.tick[-1]) if self.rows else -1

    @property
    def schema(self) -> int:
        """The highest schema it names."""
        return schema_of(self.notes)

    def names(self) -> dict[str, bool]:
        """The signals in it, and whether each was recorded in every row."""
        return {name: bool(column.present.all()) for name, column in self.block.columns.items()}

    def read(self, axes: Mapping[str, IntArray], columns: Mapping[str, Target]) -> Losses:
        """Fill the axes, and those of its columns that are asked for."""
        axes["step"][:] = self.block.step
        axes["tick"][:] = self.block.tick
        axes["attempt"][:] = self.block.attempt
        axes["position"][:] = self.block.data_position
        for name, target in columns.items():
            column = self.block.columns[name]
            target.values[:] = column.values
            if target.present is not None:
                target.present[:] = column.present
        return Losses()


class LogParser:
    """Reads the bytes of an open file as they come, a line at a time.

    A line is taken when its newline has come, so a line that is being written is never half read.
    """

    def __init__(self, file: str, after: int = -1) -> None:
        """Records up to the tick `after` are known already and are not taken again."""
        self._file = file
        self._after = after
        self._step = 0
        self._rest = b""
        self._offset = 0  # of the rest in the file
        self._records: list[Record] = []
        self._notes: list[Entry] = []
        self._note_numbers: set[int] = set()
        self._damage: list[Damage] = []
        self._bad_lines = 0
        self._bad_from = 0

    @property
    def fed(self) -> int:
        """How many bytes of the file have been given to `feed`."""
        return self._offset + len(self._rest)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the file."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            entry = decode(line)
            if entry is None:
                if not self._bad_lines:
                    self._bad_from = self._offset
                self._bad_lines += 1
            else:
                self._tell_bad_lines()
                self._take(entry)
            self._offset += len(line) + 1

    def finish(self) -> None:
        """Say that no more bytes will come."""
        self._tell_bad_lines()
        if self._rest:
            self._tell(
                DamageKind.TORN_TAIL,
                f"{self._file} ends in an incomplete line of {len(self._rest)} bytes: "
                "the writer was stopped in the middle of it, or is still writing",
                extent=(self._offset, self.fed),
            )
        lost = max(self._note_numbers, default=-1) + 1 - len(self._note_numbers)
        if lost:
            self._tell(
                DamageKind.LOST_LINES,
                f"{self._file} lacks {lost} of its lines that are not records, by their numbers",
            )

    def take(self) -> LogPart:
        """What has come since the last time it was taken."""
        records = self._in_order()
        builder = BlockBuilder()
        for record in records:
            builder.add(record)
        part = LogPart(
            file=self._file,
            block=builder.build() if records else Block.empty(),
            notes=tuple(sorted(self._notes, key=_place)),
            damage=tuple(self._damage),
        )
        if records:
            self._after = records[-1].tick
        self._records, self._notes, self._damage = [], [], []
        return part

    def _take(self, entry: Entry) -> None:
        tick = self._records[-1].tick if self._records else self._after
        record, notes = understand(entry, tick + 1, self._step)
        if record is not None:
            self._records.append(record)
            self._step = record.step
        for note in notes:
            number = note.get("note")
            if number is None or number not in self._note_numbers:
                self._notes.append(note)
                self._note_numbers.update([] if number is None else [number])
            else:
                self._tell(
                    DamageKind.REPEATED,
                    f"{self._file} holds its line number {number} twice; the first was taken",
                )

    def _in_order(self) -> list[Record]:
        """The records by rising tick, each tick once; a copied stretch of the file is put right."""
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
            self._tell(
                DamageKind.REPEATED,
                f"{self._file} holds {len(repeated)} records twice or too late, between the ticks "
                f"{min(repeated)} and {max(repeated)}; the first were taken",
                ticks=(min(repeated), max(repeated)),
            )
        return [first_seen[tick] for tick in sorted(first_seen)]

    def _tell_bad_lines(self) -> None:
        if self._bad_lines:
            self._tell(
                DamageKind.DAMAGED_LINES,
                f"{self._file} has {self._bad_lines} damaged lines in the bytes "
                f"{self._bad_from} to {self._offset}; they were left out",
                extent=(self._bad_from, self._offset),
            )
            self._bad_lines = 0

    def _tell(
        self,
        kind: DamageKind,
        sentence: str,
        ticks: tuple[int, int] | None = None,
        extent: tuple[int, int] | None = None,
    ) -> None:
        self._damage.append(
            Damage(kind=kind, file=self._file, sentence=sentence, ticks=ticks, extent=extent)
        )


def _place(note: Entry) -> float:
    # A sort is stable: notes without a number (leftovers of a line) go to the end as they came.
    number = note.get("note")
    return float("inf") if number is None else number
