"""OpenLog: the file that is being written, and its content in memory for when it is sealed."""

import errno
import os
from collections.abc import Mapping

from trimtab.core.signals import Quality
from trimtab.journal.format.entries import SCHEMA
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.format.lines import Entry, encode
from trimtab.journal.write.packing import Forms, PackedRows


class OpenLog:
    """One open file. Lines are added, then flushed; what the disk did not take is kept."""

    def __init__(
        self, files: JournalFiles, index: int, qualities: Mapping[str, Quality], forms: Forms
    ) -> None:
        self.index = index
        self.rows = PackedRows()
        self._forms = forms
        self.notes: list[Entry] = []
        self._pending = bytearray()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(files.log(index), flags, 0o644)
        labels = {name: quality.label for name, quality in qualities.items()}
        self.add({"kind": "segment", "schema": SCHEMA, "index": index, "qualities": labels})

    def add(self, item: bytes | Entry) -> None:
        """Add a packed record or a note; it is on its way to the disk after the next flush."""
        if isinstance(item, bytes):
            form = self._forms.of_record(item)
            self.rows.add(form, item)
            self._pending += form.line(item)
        else:
            note = item | {"note": len(self.notes)}
            self.notes.append(note)
            self._pending += encode(note)

    def flush(self) -> None:
        """Hand all lines to the operating system; raises OSError and can then be tried again."""
        while self._pending:
            # A full disk takes part of what it is given. The rest stays here and goes first next
            # time, so the file is whole again as soon as there is space.
            taken = os.write(self._descriptor, self._pending)
            if not taken:
                raise OSError(errno.EIO, "the disk took none of the bytes")
            del self._pending[:taken]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
