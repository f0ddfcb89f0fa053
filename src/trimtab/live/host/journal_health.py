"""JournalHealth: what the journal loses or cannot write is reported, once in the log."""

from trimtab.journal import JournalWriter
from trimtab.live.shield import log


class JournalHealth:
    """Watches the journal of a run."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._num_dropped = 0
        self._error: Exception | None = None

    def check(self, step: int) -> None:
        """Report records that were lost and what the disk has said."""
        dropped, error = self._journal.dropped, self._journal.error
        if dropped > self._num_dropped and self._num_dropped == 0:
            log.warning("trimtab: the journal loses records from step %d on", step)
        self._num_dropped = dropped
        if error is not None and self._error is None:
            log.warning("trimtab: the journal cannot be written: %s", error)
            self._error = error

    def remarks(self) -> tuple[str, ...]:
        """What every report must say about the journal."""
        remarks = []
        if self._journal.dropped:
            remarks.append(f"{self._journal.dropped} records were lost: the disk was too slow")
        if self._journal.error is not None:
            remarks.append(f"the journal could not be written: {self._journal.error}")
        return tuple(remarks)
