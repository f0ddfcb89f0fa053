"""RunStream: what is new in a run, for whoever shows it or sends it on.

    journal         records, and what happened     \
    observer.jsonl  incidents, how the run stands   >  RunStream  -->  terminal, pages, sinks
                                                   /

Runs before 0.4 have their incidents in the journal; what an observer says about the same records
later is not delivered a second time.
"""

from collections.abc import Sequence
from dataclasses import replace

from trimtab.core.block import Block, Event
from trimtab.core.incidents import Transition
from trimtab.core.sink import RUN_STATUS, RunStatus, parse_status
from trimtab.journal import PIECE_RECORDS, Follower, RunDirectory, RunTotals
from trimtab.journal.lines import Damage
from trimtab.journal.news import INCIDENT, REPORT_WRITTEN, NewsReader
from trimtab.observe.liveness import Standing

_RUNNING = Standing(status=RunStatus.RUNNING, how="")


class RunStream:
    """Delivers each record, event and piece of news of a run once, in order, and adds them up."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.totals = RunTotals()
        """What was delivered so far, added up."""
        self.went_back = False
        """Whether the run went back to an earlier step in the last block."""
        self._follower = Follower(run)
        self._news = NewsReader(run)
        self._waiting: list[Event] = []
        """News that were not delivered yet: they follow the whole journal."""
        self._last_status: Event | None = None
        self._is_written = False
        self._last_journaled = -1
        """The tick of the last incident event in the journal itself."""

    @property
    def has_more(self) -> bool:
        """Whether the last call of `poll` may have left something for the next one."""
        return self._follower.has_more

    @property
    def ended(self) -> str | None:
        """How the writer of the journal ended; None while it runs or if it was killed."""
        return None if self.has_more else self._follower.ended

    @property
    def damage(self) -> tuple[Damage, ...]:
        return self._follower.damage

    @property
    def standing(self) -> Standing:
        """How the run stands, as its observer said; running if it went on since, or none has."""
        said = self._last_status
        if said is None or said.tick <= self.totals.last_tick:
            return _RUNNING
        return Standing(
            status=parse_status(said.facts.get("status")), how=str(said.facts.get("how"))
        )

    @property
    def is_written(self) -> bool:
        """Whether the run is over, and its observer has written everything about it."""
        return self._is_written and self.standing.status.is_over

    def poll(self, max_records: int | None = PIECE_RECORDS) -> Block:
        """Return the records and events since the last call, with the news among the events."""
        block, news = self.read(max_records)
        events = sorted([*block.events, *news], key=lambda event: event.tick)
        return replace(block, events=tuple(events)) if news else block

    def read(self, max_records: int | None = PIECE_RECORDS) -> tuple[Block, Sequence[Event]]:
        """Return what `poll` returns, the news apart from the journal."""
        # News first: the records that they are about are then in the journal.
        self._waiting += self._news.poll()
        block = self._follower.poll(max_records)
        for event in block.events:
            if event.kind == INCIDENT:
                self._last_journaled = max(self._last_journaled, event.tick)
        self.went_back = self.totals.add(block)
        news = [] if self.has_more else self._due_news()
        self.totals.add(replace(Block.empty(), events=tuple(news)))
        return block, news

    def close(self) -> None:
        self._follower.close()

    def _due_news(self) -> list[Event]:
        waiting, self._waiting, delivered = self._waiting, [], []
        for event in waiting:
            if event.kind == RUN_STATUS:
                self._last_status, self._is_written = event, False
            elif event.kind == REPORT_WRITTEN:
                self._is_written = True
                continue
            elif event.tick <= self._last_journaled and not _is_dismissal(event):
                continue
            delivered.append(event)
        return delivered


def _is_dismissal(event: Event) -> bool:
    return event.facts.get("transition") == Transition.DISMISSED
