"""NoRecorder: what the other ranks have in place of a recorder; it records nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trimtab.core.block import Record
from trimtab.core.incidents import Incident
from trimtab.journal.resume.journal_past import JournalPast
from trimtab.live.host.bad_data import BadData


class NoRecorder:
    """The members of a recorder that a step needs on every rank."""

    is_recording: Literal[False] = False
    past: JournalPast | None = None
    bad_data = BadData()
    incidents: tuple[Incident, ...] = ()
    recent: Sequence[Record] = ()
    attempt = num_incidents = num_changes = num_nonfinite = 0

    def number_of(self, train_step: Any) -> int:
        number: int = train_step.step
        return number

    def record(self, train_step: Any, numbers: Mapping[str, float]) -> None: ...
    def unrecorded(self, train_step: Any) -> None: ...
    def event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None: ...
    def audit(self, resume: Any) -> None: ...
    def note_dtype(self, dtype: str | None) -> None: ...
    def close(self, how: str) -> None: ...
    def catch_up(self) -> bool:
        return True  # the verdicts are the business of the first rank

    def summary(self) -> str:
        return ""
