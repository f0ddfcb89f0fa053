"""The journal: every record and event of a run, safe on disk within a fraction of a second.

The way of a record:

    training loop                    the writer's threads                    anybody, any time

    JournalWriter.append
      | gives the tick
      v
    Intake                 --->   OpenLog                        --->   read_journal (all)
      bounded queue;              00000003.log                          Follower (what is new)
      full: dropped, counted,     one checksummed line each               ^
      told later                    | full, or closed                     |
                                    v                                     |
                                  Sealer                                  |
                                  00000003.seg                   ---------+
                                  checked columns; the log goes

Files: directory (the run's folder), files (names), lines (one line), notes and story (what lines
mean), logfile (read an open file), header, segment, sealed (the sealed file: layout, write, read),
assembly and opening and reader (all files into one block), packing, intake, openlog, sealing, lock
and writer (the way in), follow (the live way out), notebook (what people write down), damage (what
is told when something is wrong).
"""

from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.read.follow import Follower
from trimtab.journal.read.notebook import add_note
from trimtab.journal.read.reader import JournalReading, read_journal
from trimtab.journal.read.story import UNKNOWN_EVENT
from trimtab.journal.write.writer import JournalWriter

__all__ = [
    "UNKNOWN_EVENT",
    "Damage",
    "DamageKind",
    "Follower",
    "JournalReading",
    "JournalWriter",
    "RunDirectory",
    "add_note",
    "read_journal",
]
