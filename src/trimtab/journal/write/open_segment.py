"""OpenSegment: the file that is being written, and its content in memory, to be sealed later."""

import errno
import os
from collections.abc import Mapping

from trimtab.core.signals import Quality
from trimtab.journal.format.entries import SCHEMA
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.format.lines import Entry, encode
from trimtab.journal.write.record_layouts import PackedRows, RecordLayouts


class OpenSegment:
    """One open segment. Lines are added, then flushed; what could not be written is kept."""

    def __init__(
        self,
        files: JournalFiles,
        index: int,
        qualities: Mapping[str, Quality],
        layouts: RecordLayouts,
    ) -> None:
        self.index = index
        self.rows = PackedRows()
        self._layouts = layouts
        self.entries: list[Entry] = []
        self._pending = bytearray()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(files.log(index), flags, 0o644)
        labels = {name: quality.label for name, quality in qualities.items()}
        self.add({"kind": "segment", "schema": SCHEMA, "index": index, "qualities": labels})

    def add(self, item: bytes | Entry) -> None:
        """Add a packed record or an entry; the next flush writes it."""
        if isinstance(item, bytes):
            layout = self._layouts.of_record(item)
            self.rows.add(layout, item)
            self._pending += layout.line(item)
        else:
            entry = item | {"note": len(self.entries)}
            self.entries.append(entry)
            self._pending += encode(entry)

    def flush(self) -> None:
        """Hand all lines to the operating system; raises OSError, after which it can be retried."""
        while self._pending:
            # A full disk accepts part of the bytes. The rest stays here and goes first next time,
            # so the file is complete again as soon as there is space.
            written = os.write(self._descriptor, self._pending)
            if not written:
                raise OSError(errno.EIO, "the disk took none of the bytes")
            del self._pending[:written]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
