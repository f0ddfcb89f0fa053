"""Cadence: when the next checkpoint is due, by steps or by the clock, alike on all ranks.

The clocks of ranks differ, so the first rank's decides. Reading it at every step would cost a
collective each time; it is read when half of the time or more may have passed: about ten times for
each checkpoint at most.
"""

import logging
import time

from trimtab.core.errors import ConfigError
from trimtab.core.log import log
from trimtab.core.text import counted, digits
from trimtab.state.checkpoints.store import Ranks

COSTLY_SHARE = 0.05
"""Of the time, spent in saving, from which on the log advises another cadence. Source: stability
guides put all checks and checkpoints of a run at 5 to 10 % of its time."""


class Cadence:
    """Decides after which steps to save; ask it on all ranks, at the end of each step."""

    def __init__(self, ranks: Ranks, every_steps: int | None, every_seconds: float | None) -> None:
        for name, value in (("every_steps", every_steps), ("every_seconds", every_seconds)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value}")
        self._ranks = ranks
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._saved_at: tuple[int, float] | None = None
        """Step and clock of the last save; of the start, if there was none."""
        self._ask_at = 0
        """The step at which the first rank's clock is asked next."""
        self._has_told = False

    def is_due(self, step: int) -> bool:
        """Return whether to save before `step`, the number of the next one."""
        if self._every_steps is None and self._every_seconds is None:
            return False
        if self._saved_at is None:
            self._saved_at = (step - 1, time.monotonic())
        last, clock = self._saved_at
        if self._every_steps is not None and step - last >= self._every_steps:
            return True
        if self._every_seconds is None or step < self._ask_at:
            return False
        passed = self._ranks.first(lambda: time.monotonic() - clock)
        if passed >= self._every_seconds:
            return True
        steps = max(step - last, 1)
        left = int(steps * (self._every_seconds - passed) / max(passed, 1e-6))
        self._ask_at = step + max(min(left, steps), 1)  # at most twice the time so far
        return False

    def note_save(self, step: int, began: float) -> None:
        """Count from here on; `began` is when the save did. The first one tells its price."""
        now = time.monotonic()
        last, self._saved_at, self._ask_at = self._saved_at, (step, now), step + 1
        if last is None or step <= last[0] or self._has_told or not self._ranks.is_first:
            return
        self._has_told = True
        seconds, interval = now - began, max(now - last[1], 1e-9)
        share = seconds / interval
        log.log(
            logging.WARNING if share > COSTLY_SHARE else logging.INFO,
            "trimtab: a checkpoint takes %s s, %s %% of the time; going back to one costs up to "
            "%s (%s s)%s",
            digits(seconds),
            digits(100 * share),
            counted(step - last[0], "step"),
            digits(interval),
            "; save less often, or with background=True" if share > COSTLY_SHARE else "",
        )
