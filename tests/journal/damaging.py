"""A journal whose every number is known, and ways to damage one of its files.

A wound says which bytes it touched, so that the test knows what may be lost and what may not.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.files import JournalFiles
from trimtab.journal.header import CHUNK_ROWS
from trimtab.journal.record_queue import RecordLayouts
from trimtab.journal.sealed_segment import SealedSegment
from trimtab.journal.writer import JournalLimits, OpenSegment

SEALED, OPEN = 10_000, 400
"""Records in each of the two sealed files, and in the log after them."""
RECORDS = 2 * SEALED + OPEN
EVENTS = range(0, RECORDS, 97)
SIGNALS = ("loss", "sparse", "norm")
Mask = NDArray[np.bool_]


class Truth:
    """What was written, by tick."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.step = np.arange(RECORDS) // 3
        self.attempt = np.arange(RECORDS) // 5000
        self.position = rng.integers(0, 10**9, RECORDS)
        self.values = {name: rng.normal(size=RECORDS) for name in SIGNALS}
        self.values["loss"][rng.random(RECORDS) < 0.1] = np.nan
        self.present = {name: np.ones(RECORDS, dtype=np.bool_) for name in SIGNALS}
        self.present["sparse"] = rng.random(RECORDS) < 0.3

    def signals(self, tick: int) -> dict[str, float]:
        return {n: float(self.values[n][tick]) for n in SIGNALS if self.present[n][tick]}

    def write(self, run: RunDirectory) -> None:
        """Two sealed files, and a log that its writer never finished."""
        config = JournalLimits(segment_records=SEALED, queue_records=10**6, close_seconds=60)
        with JournalWriter(run, config) as writer:
            for tick in range(2 * SEALED):
                if tick in EVENTS:
                    writer.event("seen", tick, tick=tick)
                writer.append(
                    int(self.step[tick]),
                    self.signals(tick),
                    int(self.attempt[tick]),
                    int(self.position[tick]),
                )
        assert writer.error is None
        (run.journal / "00000002.seg").unlink()  # it holds the end note only
        layouts = RecordLayouts()
        log = OpenSegment(JournalFiles(run.journal), 2, {})
        for tick in range(2 * SEALED, RECORDS):
            if tick in EVENTS:
                facts = {"tick": tick}
                log.add(
                    {"kind": "event", "event": "seen", "tick": tick, "step": tick, "facts": facts}
                )
            signals = self.signals(tick)
            step, attempt, position = (
                int(axis[tick]) for axis in (self.step, self.attempt, self.position)
            )
            layout = layouts.for_names(tuple(signals))
            log.add((layout, layout.pack(step, tick, attempt, position, signals.values())))
        log.flush()
        log.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wound:
    """What was done to a file, in terms of the bytes that it had before."""

    first: int
    stop: int
    """Bytes from first to stop are not as they were; equal where bytes were put in between."""
    is_cut_to_end: bool = False
    moves_rest: bool = False
    """Whether the bytes after it are no longer where they were."""


def wound(kind: str, path: Path, rng: random.Random) -> Wound:
    """Damage a file in one of six ways."""
    data = bytearray(path.read_bytes())
    size = len(data)
    first = rng.randrange(size)
    length = min(rng.choice([1, 50, 4096, 40_000]), size - first)
    stop = first + length
    match kind:
        case "bit flip":
            data[first] ^= 1 << rng.randrange(8)
            stop = first + 1
        case "zeroed page":
            first = first // 4096 * 4096
            stop = min(first + 4096, size)
            data[first:stop] = bytes(stop - first)
        case "random bytes":
            data[first:stop] = rng.randbytes(length)
        case "truncation":
            del data[first:]
            stop = size
        case "deleted range":
            del data[first:stop]
        case "duplicated range":
            copied, place = data[first:stop], rng.randrange(size)
            data[place:place] = copied
            first = stop = place
    path.write_bytes(data)
    return Wound(
        first=first,
        stop=stop,
        is_cut_to_end=stop == size and kind != "bit flip",
        moves_rest=kind in ("deleted range", "duplicated range"),
    )


def may_be_lost(original: Path, hurt: Wound, first_tick: int) -> tuple[Mask, dict[str, Mask]]:
    """The records, and the values by signal, that a wound is allowed to cost."""
    rows = np.zeros(RECORDS, dtype=np.bool_)
    values = {name: np.zeros(RECORDS, dtype=np.bool_) for name in SIGNALS}
    if original.suffix == ".log":
        _mark_lines(original.read_bytes(), hurt, rows, first_tick)
        return rows, values
    file = SealedSegment(original)
    end = file._base + file._offsets["end", ""]
    if hurt.first < file._base and hurt.stop > end:  # both headers
        rows[first_tick : first_tick + file.rows] = True
        return rows, values
    if hurt.moves_rest:  # a sealed file is read by position: what has moved is lost
        hurt = replace(hurt, stop=original.stat().st_size)
    for (part, name), at in file._offsets.items():
        length = {"axis": 8 * file.rows, "values": 8 * file.rows, "mask": -(-file.rows // 8)}
        begin, stop = file._base + at, file._base + at + length.get(part, 0)
        if part in ("entries", "end") or hurt.stop < begin or hurt.first >= stop:
            continue
        per_row = 1 / 8 if part == "mask" else 8
        low = int((max(hurt.first, begin) - begin) / per_row) // CHUNK_ROWS * CHUNK_ROWS
        high = -int(-(min(hurt.stop + 1, stop) - begin) / per_row // CHUNK_ROWS) * CHUNK_ROWS
        span = slice(first_tick + low, first_tick + min(high, file.rows))
        (rows if part == "axis" else values[name])[span] = True
    return rows, values


def _mark_lines(data: bytes, hurt: Wound, rows: Mask, first_tick: int) -> None:
    tick, at = first_tick, 0
    for line in data.splitlines(keepends=True):
        is_record = b'"kind":"record"' in line
        # A line ends where the next begins: damage to either border may cost both.
        if is_record and at <= hurt.stop and at + len(line) >= hurt.first:
            rows[tick] = True
        tick += is_record
        at += len(line)
