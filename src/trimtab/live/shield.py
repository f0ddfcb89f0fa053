"""Shield: a bug of ours must never stop or change a training run."""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("trimtab")


class Shield:
    """Catches whatever our own code raises, tells it once, and takes the guard out of the way."""

    def __init__(self, consequence: str = "steps aside") -> None:
        self._consequence = consequence
        self.is_down = False
        """Whether something was caught: from then on the guard only gets out of the way."""
        self._listeners: list[Callable[[str, str], None]] = []

    def on_catch(self, listener: Callable[[str, str], None]) -> None:
        """Call this with the place and the error when something is caught."""
        self._listeners.append(listener)

    @contextmanager
    def guarding(self, place: str) -> Iterator[None]:
        """Run our own code; never let an exception of it reach the user."""
        try:
            yield
        except Exception as error:  # the very point: no error of ours gets out
            self.catch(place, error)

    def catch(self, place: str, error: Exception) -> None:
        """Take what our own code has raised, where `guarding` cannot stand."""
        first = not self.is_down
        self.is_down = True
        if not first:
            return
        told = "".join(traceback.format_exception(error)).strip()
        log.error(
            "trimtab failed in %s and %s; training goes on:\n%s", place, self._consequence, told
        )
        for listener in self._listeners:
            try:
                listener(place, told)
            except Exception:  # even the telling may fail
                log.exception("trimtab could not tell of its failure")
