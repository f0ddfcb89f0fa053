"""NewSources: notices a data source that is new to the run, on the first rank."""

from trimtab.live.recover.decide.run_view import RunView

LEARNT_BOUNDARIES = 96
"""Boundaries in which sources are only learnt: at the start of a process all of them are new.
Chosen: the canary has its first readings by then."""


class NewSources:
    """Remembers which sources have come."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._num_looks = 0
        self._next_position: int | None = None

    def look(self, view: RunView) -> str | None:
        """At a boundary: a source of the last batches that no earlier one had, if there is one."""
        first = view.next_position if self._next_position is None else self._next_position
        self._next_position = view.next_position
        self._num_looks += 1
        found = [view.source_at(position) for position in range(first, view.next_position)]
        new = [source for source in found if source is not None and source not in self._known]
        self._known.update(new)
        return new[0] if new and self._num_looks > LEARNT_BOUNDARIES else None
