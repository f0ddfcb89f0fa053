"""Shipment: everything about sending one run to one sink."""

import threading
import time
from dataclasses import replace

from trimtab.core.block import Block, Event
from trimtab.core.config import ShipConfig
from trimtab.core.errors import JournalError, TrimtabError
from trimtab.core.sink import RUN_STATUS, RunStatus, ShippedRun, Sink
from trimtab.integrations.shipper.cursor import Cursor, SinkLock
from trimtab.integrations.shipper.delivery import Delivery, Refusal
from trimtab.integrations.shipper.feed import Feed
from trimtab.integrations.shipper.liveness import Liveness
from trimtab.integrations.shipper.log import ShipLog
from trimtab.integrations.transport.secrets import SECRETS
from trimtab.journal import RunDirectory, add_note

POLL_SECONDS = 0.5
"""From one look at the journal to the next; the journal itself is written every 0.1 s."""

MAX_WAIT, MAX_LAST_WAIT = 60.0, 5.0
"""The longest wait before an attempt is repeated, while the run lives and after it."""

POSTMORTEM_SECONDS = 30.0
"""How long the end waits for a run that is alive to write its post-mortems."""


class Shipment:
    """Sends a run to a sink until the run is over and everything was sent."""

    def __init__(
        self,
        run: RunDirectory,
        sink: Sink,
        config: ShipConfig,
        liveness: Liveness,
        log: ShipLog,
        *,
        give_up_seconds: float | None,
    ) -> None:
        """With `give_up_seconds`, stop this long after the run is over, whatever remains."""
        self.sink = sink
        self.cursor = Cursor(run, sink.name)
        self._run = run
        self._config = config
        self._liveness = liveness
        self._log = log
        self._give_up_seconds = give_up_seconds
        self._delivery = Delivery(sink.send)
        self._has_begun = False
        self._over_since: float | None = None
        self._problem: str | None = None
        self._noted: set[str] = set()
        self.is_complete = False
        """Whether everything was sent and finished."""

    def work(self, stop: threading.Event) -> None:
        """Send until the end; for a thread of its own."""
        try:
            lock = self._take_lock(stop)
            try:
                self.cursor = Cursor(self._run, self.sink.name)  # of the shipper before this one
                self._work(stop)
            finally:
                lock.release()
        except TrimtabError as error:  # the user can fix it; sending again cannot
            self._log.warning(f"{self.sink.name}: {error}")
        except Exception as error:
            self._log.warning(f"{self.sink.name} failed and is left out: {_describe(error)}")

    def _take_lock(self, stop: threading.Event) -> SinkLock:
        """Take the lock of this sink; a shipper of an earlier launch may still send its rest."""
        while True:
            try:
                return SinkLock(self._run, self.sink.name)
            except JournalError:
                if self._give_up_seconds is None or stop.wait(1.0):
                    raise

    def _work(self, stop: threading.Event) -> None:
        feed = Feed(
            self._run,
            self.cursor,
            self._config.every,
            everything=self.sink.needs_everything,
        )
        wait = POLL_SECONDS
        try:
            while not stop.is_set():
                try:
                    self.is_complete = self._attempt(feed, stop)
                    self._report_recovery()
                    if self.is_complete:
                        return
                    wait = POLL_SECONDS
                except TrimtabError:
                    raise
                except Exception as error:
                    self._report_problem(error)
                    wait = min(2 * wait, MAX_WAIT if self._over_since is None else MAX_LAST_WAIT)
                if self._is_time_over():
                    at_least = "at least " if feed.has_more else ""
                    self._log.warning(
                        f"{self.sink.name}: {at_least}{feed.waiting} records were not sent in "
                        f"time; they are in the journal: trimtab ship {self._run.root} --to "
                        f"{self.sink.name}"
                    )
                    return
                stop.wait(wait)
        finally:
            feed.close()
            self.sink.close()

    def _attempt(self, feed: Feed, stop: threading.Event) -> bool:
        """Send what is new; whether the run is over and everything was sent."""
        status = self._look(feed)
        if not self._has_begun:
            self.sink.begin(_describe_run(self._run), self.cursor)
            self._has_begun = True
        while True:
            batch = feed.batch()
            if len(batch) or batch.events:
                self._record_refusals(self._delivery.deliver(batch))
                self.cursor.advance(batch)
                self.cursor.save()
                feed.sent()
            elif feed.has_more:
                status = self._look(feed)  # a long journal is read piece by piece
            else:
                break
            if stop.is_set() or self._is_time_over():
                return False
        if status is not self.cursor.status:
            self._send_status(status, feed)
        self.sink.poll()
        if not status.is_over:
            return False
        if status is RunStatus.ENDED and self._is_writing_postmortems(feed):
            return False
        self.sink.finish(status)
        self.cursor.save()
        return True

    def _look(self, feed: Feed) -> RunStatus:
        """Read what is new; how the run stands."""
        status = self._liveness.status(feed)
        if status.is_over and self._over_since is None:
            self._over_since = time.monotonic()
        elif not status.is_over:
            self._over_since = None  # it was resumed
        return status

    def _send_status(self, status: RunStatus, feed: Feed) -> None:
        facts = {"status": status.value, "before": self.cursor.status.value, "how": feed.ended}
        event = Event(kind=RUN_STATUS, tick=self.cursor.next_tick, step=feed.last_step, facts=facts)
        self._delivery.deliver(replace(Block.empty(), events=(event,)))
        self._log.info(f"{self.sink.name}: the run is {status.value}")
        self.cursor.status = status
        self.cursor.save()

    def _is_writing_postmortems(self, feed: Feed) -> bool:
        if self._over_since is None or time.monotonic() - self._over_since > POSTMORTEM_SECONDS:
            return False
        return self._liveness.process.is_writing(feed.incidents)

    def _is_time_over(self) -> bool:
        if self._give_up_seconds is None or self._over_since is None:
            return False
        return time.monotonic() - self._over_since > self._give_up_seconds

    def _record_refusals(self, refusals: list[Refusal]) -> None:
        """Refused points are counted, and the first of each kind is a note on the run."""
        for refusal in refusals:
            self.cursor.num_refused += refusal.points
            if refusal.is_repeated:
                continue
            message = SECRETS.hide(
                f"{self.sink.name} refused {refusal.points} points of {refusal.what}, from step "
                f"{refusal.step} on: {refusal.reason}"
            )
            if refusal.what in self._noted:
                self._log.info(message)
                continue
            self._noted.add(refusal.what)
            self._log.warning(message)
            try:
                add_note(self._run, message[:1000])
            except JournalError as error:
                self._log.warning(f"the refusal cannot be noted: {error}")

    def _report_problem(self, error: Exception) -> None:
        problem = _describe(error)
        if self._problem is None:
            self._log.warning(
                f"{self.sink.name} cannot be reached: {problem}; the records wait on disk"
            )
        elif problem != self._problem:
            self._log.info(f"{self.sink.name}: {problem}")
        self._problem = problem

    def _report_recovery(self) -> None:
        if self._problem is not None:
            self._problem = None
            self._log.warning(
                f"{self.sink.name} can be reached again; {self.cursor.num_records} records sent"
            )


def _describe(error: Exception) -> str:
    return SECRETS.describe(error)


def _describe_run(run: RunDirectory) -> ShippedRun:
    try:
        manifest = run.read_manifest()
    except JournalError:
        manifest = {}
    return ShippedRun(name=run.root.resolve().name, home=run.home, manifest=manifest)
