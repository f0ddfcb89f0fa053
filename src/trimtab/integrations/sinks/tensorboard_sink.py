"""TensorBoard: one folder per attempt, so a spike before a resume from a checkpoint stays visible
beside the repeated steps.

Exactly once: the length of each file is saved with the position, and what a killed shipper wrote
beyond it is cut off.

The files are TFRecords around hand-packed protocol buffers: one event per record with all of its
scalars takes a seventh of the time of `SummaryWriter`, which makes one event per scalar.
"""

import contextlib
import io
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trimtab.core.block import Block, Event
from trimtab.core.escaping import escape_markdown
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.incident_news import IncidentNews
from trimtab.integrations.sinks.rows import PREFIX, tracker_rows
from trimtab.journal.directory import read_postmortems
from trimtab.journal.files import inside, open_regular
from trimtab.readers.trackers.tfrecord import masked_crcs

VARIABLE = "TRIMTAB_TENSORBOARD_DIR"
"""The log directory; `trimtab/tensorboard` in the run directory by default."""


_FILE = re.compile(r"trimtab/attempt-[0-9]{1,9}/events\.out\.tfevents\.trimtab")


class TensorBoardSink:
    """Writes event files."""

    name = "tensorboard"
    needs_everything = False

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Find the folder, and cut off what was not saved."""
        given = os.environ.get(VARIABLE)
        self._folder = Path(given) / run.name if given else inside(run.home, "tensorboard")
        self._run, self._memory = run, memory
        saved = memory.values.get("sizes")
        # The position is a file that a stranger may have written: it names files of this sink only.
        self._sizes: dict[str, int] = {
            name: size
            for name, size in (saved.items() if isinstance(saved, dict) else ())
            if _FILE.fullmatch(name) and type(size) is int and size >= 0
        }
        memory.values["sizes"] = self._sizes
        self._clock = 0.0
        self._attempt = int(memory.values.get("attempt", 0))
        for name, size in self._sizes.items():
            with contextlib.suppress(FileNotFoundError), self._open(name) as file:
                if os.fstat(file.fileno()).st_size > size:
                    file.truncate(size)

    def send(self, block: Block) -> None:
        """Append the records to the files of their attempts."""
        parts: dict[int, list[bytes]] = {}
        for row in tracker_rows(block):
            scalars = scalars_event(row.step, row.clock, row.values)
            parts.setdefault(row.attempt, []).append(scalars)
            self._clock, self._attempt = row.clock, row.attempt
        for event in block.events:
            if (text := self._text(event)) is not None:
                parts.setdefault(self._attempt, []).append(text)
        for attempt, events in parts.items():
            self._append(attempt, b"".join(events))
        self._memory.values["attempt"] = self._attempt

    def poll(self) -> None:
        """Do nothing: nothing is due by the clock."""

    def finish(self, status: RunStatus) -> None:
        for path, content in read_postmortems(self._run.home):
            folder, _, file = path.partition("/")
            if file == "postmortem.md":
                text, name = content.decode("utf-8", "replace"), f"{PREFIX}postmortem/{folder}"
                self._append(self._attempt, text_event(0, self._clock, name, text))

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _append(self, attempt: int, data: bytes) -> None:
        """Append to the file of an attempt; the same bytes at the same place if sent again."""
        # TensorBoard takes the newest file of a folder for the live one, so there is only one.
        name = f"trimtab/attempt-{attempt}/events.out.tfevents.trimtab"
        size = self._sizes.get(name, 0)
        if size == 0:
            data = version_event(self._clock) + data
        inside(self._folder, name).parent.mkdir(parents=True, exist_ok=True)
        with io.BufferedWriter(self._open(name, os.O_CREAT)) as file:
            file.seek(size)
            file.truncate()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._sizes[name] = size + len(data)

    def _open(self, name: str, flags: int = 0) -> io.FileIO:
        return open_regular(inside(self._folder, name), os.O_RDWR | flags)

    def _text(self, event: Event) -> bytes | None:
        news = IncidentNews.from_event(event)
        if news is None:
            return None
        changed = news.transition.value if news.transition else "changed"
        text = f"{changed}: {escape_markdown(news.describe())}"
        name = f"{PREFIX}incident/{news.number:04d}"
        return text_event(event.step, self._clock, name, text)


_FILE_VERSION = "brain.Event:2"


def version_event(clock: float) -> bytes:
    """Return the first record of every file."""
    return frame_record(_double(1, clock) + _bytes(3, _FILE_VERSION.encode()))


def scalars_event(step: int, clock: float, values: Mapping[str, float]) -> bytes:
    entries = b"".join(
        _bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in values.items()
    )
    return frame_record(_double(1, clock) + _varint(2, step) + _bytes(5, entries))


def text_event(step: int, clock: float, name: str, markdown: str) -> bytes:
    """Return a text for the text tab, which renders it as Markdown."""
    plugin = _bytes(1, _bytes(1, b"text"))
    shape = _bytes(2, _bytes(2, _varint(1, 1)))  # a string tensor of one element
    tensor = _varint(1, 7) + shape + _bytes(8, markdown.encode())
    entry = _bytes(1, name.encode()) + _bytes(8, tensor) + _bytes(9, plugin)
    return frame_record(_double(1, clock) + _varint(2, step) + _bytes(5, _bytes(1, entry)))


def frame_record(payload: bytes) -> bytes:
    """Return a TFRecord: length and payload, each with its checksum."""
    length = struct.pack("<Q", len(payload))
    data = np.frombuffer(length + payload, dtype=np.uint8)
    starts, sizes = np.array([0, 8]), np.array([8, len(payload)])
    first, second = masked_crcs(data, starts, sizes)
    return length + struct.pack("<I", int(first)) + payload + struct.pack("<I", int(second))


def _varint(field: int, value: int) -> bytes:
    return _key(field, 0) + _number(value & 0xFFFFFFFFFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _number(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    with np.errstate(over="ignore"):  # larger than a float: an infinity
        return _key(field, 5) + np.float32(value).tobytes()


def _key(field: int, wire: int) -> bytes:
    return _number(field << 3 | wire)


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
