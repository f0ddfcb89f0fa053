"""JudgeState: what the judge knows, in a file, so that a long run is not judged again for minutes.

The file holds the state after some record, and only the records since are judged again. Without the
file, with other settings, or if the journal has no such record, everything is judged again.
"""

import json
import logging
from typing import Any

from trimtab._version import __version__
from trimtab.core.block import Block
from trimtab.journal import RunDirectory
from trimtab.journal.files import read_regular, replace_file
from trimtab.judge import Judge

SAVE_RECORDS = 16384
"""Records from one save to the next. Source: the length of a segment of the journal."""

log = logging.getLogger("trimtab")


class JudgeState:
    """Saves the state of a judge now and then, and gives it back to the judge that continues."""

    def __init__(self, run: RunDirectory) -> None:
        self._file = run.home / "judge.json"
        self._unsaved = 0
        self._tick, self._step = -1, -1

    def load(self, judge: Judge) -> bool:
        """Load the state of an earlier observer into a judge; return whether one was found."""
        fresh = judge.state_dict()
        try:
            saved: dict[str, Any] = json.loads(read_regular(self._file))
            if saved["version"] != __version__:
                return False
            judge.load_state_dict(saved["judge"])
            self._tick, self._step = int(saved["judge"]["last_tick"]), int(saved["step"])
        except FileNotFoundError:
            return False
        except Exception:  # the journal has everything: the file only saves time
            log.info("trimtab: %s cannot be used; the whole journal is judged again", self._file)
            judge.load_state_dict(fresh)
            self._tick = self._step = -1
        return self._tick >= 0

    def unjudged(self, block: Block) -> Block | None:
        """Return the rest of a block that the loaded judge has not seen; None if it is another run.

        A journal without the record that the state ends at has been lost or begun anew.
        """
        if self._tick < 0:
            return block
        row = block.row_of(self._tick)
        if row == len(block):
            return block[row:]
        is_same = int(block.tick[row]) == self._tick and int(block.step[row]) == self._step
        self._tick = -1
        return block[row + 1 :] if is_same else None

    @property
    def last_tick(self) -> int:
        """The tick that the loaded state ends at; -1 without one."""
        return self._tick

    @property
    def is_waiting(self) -> bool:
        """Whether the record that the loaded state ends at has not come yet."""
        return self._tick >= 0

    def save(self, judge: Judge, block: Block, *, now: bool = False) -> None:
        """Count judged records, and save the state when it is time."""
        self._unsaved += len(block)
        if not len(block) or (self._unsaved < SAVE_RECORDS and not now):
            return
        self._unsaved = 0
        state = {
            "version": __version__,
            "step": int(block.step[-1]),
            "judge": judge.state_dict(),
        }
        try:
            replace_file(self._file, json.dumps(state))
        except OSError as error:
            log.warning("trimtab: %s was not written: %s", self._file, error)
