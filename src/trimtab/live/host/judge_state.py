"""JudgeState: what the judge knows, in a file, so that a long run does not resume for minutes.

A judge must know the past of a run that it continues, and it has judged that past before. The file
holds its state after some record, and only the records since are judged again. Without the file,
with other settings, or if the journal has lost the record, everything is judged again.
"""

import json
import threading
from typing import Any

from trimtab._version import __version__
from trimtab.core.block import Block
from trimtab.diagnosis import RECORDS_PER_BLOCK
from trimtab.journal import RunDirectory
from trimtab.journal.files import read_regular, replace_file
from trimtab.judge import Judge
from trimtab.live.shield import log

SAVE_RECORDS = 16384
"""Records from one save to the next. Source: the length of a segment of the journal."""


class JudgeState:
    """Saves the state of a judge now and then, and gives it back to the judge of a resumed run."""

    def __init__(self, run: RunDirectory, judge: Judge) -> None:
        self._file = run.home / "judge.json"
        self._judge = judge
        self._unsaved = 0
        self._writer: threading.Thread | None = None

    def resume(self, earlier: Block) -> None:
        """Make the judge know the earlier records of the run."""
        fresh = self._judge.state_dict()
        first = self._load(earlier)
        try:
            self._judge_all(earlier[first:])
        except Exception:  # a damaged state may load and fail later
            if not first:
                raise
            self._give_up(fresh)
            self._judge_all(earlier)

    def _judge_all(self, records: Block) -> None:
        for part in records.cut(RECORDS_PER_BLOCK):
            self._judge.update(part)
            self.add(len(part))

    def add(self, num_records: int) -> None:
        """Count judged records, and save the state when it is time. The disk is not waited for."""
        self._unsaved += num_records
        is_busy = self._writer is not None and self._writer.is_alive()
        if self._unsaved >= SAVE_RECORDS and not is_busy:
            self._unsaved = 0
            text = json.dumps({"version": __version__, "judge": self._judge.state_dict()})
            self._writer = threading.Thread(target=self._write, args=(text,), daemon=True)
            self._writer.start()

    def _write(self, text: str) -> None:
        try:
            replace_file(self._file, text)
        except OSError as error:
            log.warning("trimtab: %s was not written: %s", self._file, error)

    def _load(self, earlier: Block) -> int:
        """Load the state; the number of records that it has judged, 0 if it cannot be used."""
        fresh = self._judge.state_dict()
        try:
            saved: dict[str, Any] = json.loads(read_regular(self._file))
            tick = saved["judge"]["last_tick"]
            row = earlier.row_of(tick)
            is_known = row < len(earlier) and int(earlier.tick[row]) == tick
            if not is_known or saved["version"] != __version__:
                return 0
            self._judge.load_state_dict(saved["judge"])
        except FileNotFoundError:
            return 0
        except Exception:  # the journal has everything: the file only saves time
            self._give_up(fresh)
            return 0
        return row + 1

    def _give_up(self, fresh: dict[str, Any]) -> None:
        log.info("trimtab: %s cannot be used; the whole journal is judged again", self._file)
        self._judge.load_state_dict(fresh)
