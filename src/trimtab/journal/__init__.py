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

on disk    lines.py, header.py (of a sealed segment), files.py (names, the lock, atomic writes)
writing    writer.py, record_queue.py, sealed_segment.py
reading    reader.py, segments.py, log_segment.py, sealed_segment.py, assembly.py, follow.py;
           run_totals.py what a run adds up to while it is followed
the run    directory.py the folder, notes.py what people add, news.py what its observer says,
           observer_process.py the child that judges it meanwhile, run_log.py a run that is
           written from any Python, exit_request.py how it ends itself, rollback.py what
           a person asks its next launch to go back to, checkpoints/ which there are
"""

from trimtab.journal.directory import RunDirectory
from trimtab.journal.follow import PIECE_RECORDS, Follower
from trimtab.journal.lines import Damage, DamageKind
from trimtab.journal.notes import add_note
from trimtab.journal.reader import AUDIT_EVENT, JournalRun, read_journal
from trimtab.journal.run_totals import RunTotals
from trimtab.journal.segments import UNKNOWN_EVENT
from trimtab.journal.writer import JournalWriter

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
