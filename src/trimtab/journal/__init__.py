"""The journal: every record and event of a run, handed to the system every 0.1 s.

After a kill of the process they can be read; after a power loss, up to the last sealed segment
(docs/journal.md).

    training loop                    the writer's threads                    any process, any time

    JournalWriter.append
      | assigns the tick
      v
    RecordQueue            --->   OpenSegment                    --->   read_journal (everything)
      bounded;                    00000003.log                          Follower (what is new)
      full: dropped, counted,     one checksummed line each               ^
      reported later                | full, or closed                     |
                                    v                                     |
                                  Sealer                                  |
                                  00000003.seg                   ---------+
                                  columns with checksums; the log is removed

`format/` is the bytes on disk, `write/` and `read/` the two directions, `directory` the folder of
the run, `run_totals` what it adds up to while it is followed, `notes` what people add, `approval`
what the run asks them, `exit_request` how it ends itself.
"""

from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.notes import add_note
from trimtab.journal.read.entry_summary import UNKNOWN_EVENT
from trimtab.journal.read.follow import PIECE_RECORDS, Follower
from trimtab.journal.read.reader import AUDIT_EVENT, JournalRun, read_journal
from trimtab.journal.run_totals import RunTotals
from trimtab.journal.write.writer import JournalWriter

__all__ = [
    "AUDIT_EVENT",
    "PIECE_RECORDS",
    "UNKNOWN_EVENT",
    "Damage",
    "DamageKind",
    "Follower",
    "JournalRun",
    "JournalWriter",
    "RunDirectory",
    "RunTotals",
    "add_note",
    "read_journal",
]
