"""Shipper: one thread per sink, until the run is over and everything was sent.

Shipper     starts and ends the threads
Delivery    blocks to one sink: what it refuses is halved until the refused points are alone, since
            one name that a tracker does not accept must not block everything after it for ever
Shipment    one sink: read what is new, deliver it, save the position
find_sink   the sink of a name: trimtab's own, an import path, or one of an installed package
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.config import ShipConfig
from trimtab.core.errors import JournalError, TrimtabError
from trimtab.core.plugins import SINKS, find_plugin, list_plugins
from trimtab.core.sink import RUN_STATUS, Refused, RunStatus, ShippedRun, Sink, parse_status
from trimtab.journal import RunDirectory, add_note
from trimtab.journal.files import JournalLock
from trimtab.observe.liveness import Standing
from trimtab.observe.shipping.cursor import Cursor, lock_sink
from trimtab.observe.shipping.feed import Feed
from trimtab.observe.shipping.log import ShipLog, connect_logger
from trimtab.observe.shipping.transport import SECRETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a sink refused for good."""

    what: str
    """One signal, or one kind of event, in a few words."""
    points: int
    step: int
    """The first step."""
    reason: str
    is_repeated: bool = False
    """Whether it is a signal that is left out since an earlier refusal: it is only counted."""


class Delivery:
    """Sends blocks to one sink, without the signals that it has refused altogether."""

    def __init__(self, send: Callable[[Block], None]) -> None:
        self._send = send
        self._left_out: set[str] = set()

    def deliver(self, block: Block) -> list[Refusal]:
        """Send a block; return what was refused. Raises what the sink raises otherwise."""
        num_values = {name: int(column.present.sum()) for name, column in block.columns.items()}
        refusals = [
            Refusal(what=name, points=num_values[name], step=0, reason="", is_repeated=True)
            for name in self._left_out
            if num_values.get(name)
        ]
        kept = {n: column for n, column in block.columns.items() if n not in self._left_out}
        found: dict[str, Refusal] = {}
        for name, refusal in self._send_halves(replace(block, columns=kept)):
            points = refusal.points + (found[name].points if name in found else 0)
            found[name] = replace(found.get(name, refusal), points=points)
        for name, refusal in found.items():
            if refusal.points == num_values.get(name):
                self._left_out.add(name)
                refusal = replace(refusal, what=f"{refusal.what}, which is left out from here on")
            refusals.append(refusal)
        return refusals

    def _send_halves(self, part: Block) -> list[tuple[str, Refusal]]:
        """Send a part, in halves if it is refused; return single values and events, by name."""
        try:
            self._send(part)
        except Refused as error:
            halves = _halves(part)
            if halves:
                return [found for half in halves for found in self._send_halves(half)]
            if part.events:
                event, name = part.events[0], f"the event {part.events[0].kind!r}"
                return [(name, Refusal(what=name, points=1, step=event.step, reason=str(error)))]
            for name in _names(part):  # one, or none beside the clock
                what, step = f"the signal {name!r}", int(part.step[0])
                points = int(part.columns[name].present.sum())
                return [(name, Refusal(what=what, points=points, step=step, reason=str(error)))]
        return []


def _halves(part: Block) -> list[Block]:
    """Split a part by events, then by signals, then by rows; nothing if it is one value."""
    names = _names(part)
    if part.events and len(part):
        return [replace(part, events=()), replace(Block.empty(), events=part.events)]
    if part.events:
        half = len(part.events) // 2
        events = (part.events[:half], part.events[half:]) if half else ()
        return [replace(part, events=some) for some in events]
    if len(names) > 1:
        half = len(names) // 2
        groups = ({*names[:half], signals.CLOCK}, {*names[half:], signals.CLOCK})
        columns = [{n: c for n, c in part.columns.items() if n in group} for group in groups]
        return [replace(part, columns=some) for some in columns]
    if names and part.columns[names[0]].present.sum() > 1:
        half = len(part) // 2
        return [rows for rows in (part[:half], part[half:]) if rows.columns[names[0]].recorded]
    return []


def _names(part: Block) -> list[str]:
    return [name for name in part.columns if name != signals.CLOCK]


POLL_SECONDS = 0.5
"""From one poll of the journal to the next; the journal itself is written every 0.1 s."""

MAX_WAIT, MAX_LAST_WAIT = 60.0, 5.0
"""The longest wait before an attempt is repeated, while the run lives and after it."""

POSTMORTEM_SECONDS = 30.0
"""How long the end waits for the observer to write its post-mortems."""

HANG_SECONDS = 30.0
"""How long the end waits for a sink that hangs in a library, beyond the time to send the rest."""


class Shipper:
    """Sends a run to several sinks; each has its own thread, so none waits for another."""

    def __init__(
        self,
        run: RunDirectory,
        sinks: Sequence[Sink],
        config: ShipConfig,
        log: ShipLog,
        *,
        gives_up: bool = False,
    ) -> None:
        """If it `gives_up`, stop `drain_seconds` after the run is over; else keep trying."""
        self._config = config
        self._log = log
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        seconds = config.drain_seconds if gives_up else None
        self.shipments = [
            Shipment(run, sink, config, log, give_up_seconds=seconds) for sink in sinks
        ]

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def is_complete(self) -> bool:
        return all(shipment.is_complete for shipment in self.shipments)

    def start(self) -> None:
        connect_logger(self._log)
        for shipment in self.shipments:
            thread = threading.Thread(target=shipment.work, args=(self._stop,), daemon=True)
            thread.name = f"trimtab-{shipment.sink.name}"
            self._threads.append(thread)
            thread.start()

    def note_standing(self, standing: Standing) -> None:
        """Hear how the run stands: the end is sent when the observer has written everything."""
        for shipment in self.shipments:
            shipment.standing = standing

    def stop(self) -> None:
        """Stop soon; what was not sent is sent by the next shipper."""
        self._stop.set()

    def close(self) -> bool:
        """Wait, bounded, for what is being sent; return whether every sink has everything."""
        seconds = HANG_SECONDS + (0.0 if self._stop.is_set() else self._config.drain_seconds)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                self._log.warning(f"{thread.name.partition('-')[2]} does not answer and is left")
        return self.is_complete


class RunShippers:
    """Sends every run that is observed to the same sinks."""

    def __init__(
        self, names: Iterable[str], config: ShipConfig, warn: Callable[[str], None]
    ) -> None:
        """`warn` shows a line to the user. Raises ConfigError for a sink that there is not."""
        self._names = tuple(dict.fromkeys(names))
        self._config = config
        self._warn = warn
        self._by_run: dict[RunDirectory, Shipper] = {}
        for name in self._names:
            find_sink(name)

    @property
    def shippers(self) -> list[Shipper]:
        """The shipper of each run so far."""
        return list(self._by_run.values())

    @property
    def is_alive(self) -> bool:
        return any(shipper.is_alive for shipper in self.shippers)

    def update(self, run: RunDirectory, standing: Standing) -> None:
        """Send a run from now on, or note how it stands."""
        if not self._names:
            return
        if run not in self._by_run:
            sinks = [find_sink(name) for name in self._names]
            self._by_run[run] = Shipper(run, sinks, self._config, ShipLog(run, self._warn))
            self._by_run[run].start()
        self._by_run[run].note_standing(standing)

    def stop(self) -> None:
        """Stop soon; what was not sent is sent by the next call."""
        for shipper in self.shippers:
            shipper.stop()

    def close(self) -> bool:
        """Wait, bounded, for what is being sent; return whether all of it was."""
        for shipper in self.shippers:
            shipper.close()
        return all(shipper.is_complete for shipper in self.shippers)


class Shipment:
    """Sends a run to a sink until the run is over and everything was sent."""

    def __init__(
        self,
        run: RunDirectory,
        sink: Sink,
        config: ShipConfig,
        log: ShipLog,
        *,
        give_up_seconds: float | None,
    ) -> None:
        """With `give_up_seconds`, stop this long after the run is over, whatever remains."""
        self.sink = sink
        self.cursor = Cursor(run, sink.name)
        self._run = run
        self._config = config
        self._log = log
        self._give_up_seconds = give_up_seconds
        self._delivery = Delivery(sink.send)
        self._has_begun = False
        self._over_since: float | None = None
        self._problem: str | None = None
        self._noted: set[str] = set()
        self.standing = Standing(status=RunStatus.RUNNING, how="")
        """How the run stands, as the observer of this process knows it."""
        self.is_complete = False
        """Whether everything was sent and finished."""

    def work(self, stop: threading.Event) -> None:
        """Send until the end; for a thread of its own."""
        try:
            lock = self._acquire_lock(stop)
            try:
                self.cursor = Cursor(self._run, self.sink.name)  # of the shipper before this one
                self._work(stop)
            finally:
                lock.release()
        except TrimtabError as error:  # the user can fix it; sending again cannot
            self._log.warning(f"{self.sink.name}: {error}")
        except Exception as error:
            reason = SECRETS.describe(error)
            self._log.warning(f"{self.sink.name} failed and is left out: {reason}")

    def _acquire_lock(self, stop: threading.Event) -> JournalLock:
        """Lock this sink; waits for a shipper of an earlier launch that still sends its rest."""
        while True:
            try:
                return lock_sink(self._run, self.sink.name)
            except JournalError:
                if self._give_up_seconds is None or stop.wait(1.0):
                    raise

    def _work(self, stop: threading.Event) -> None:
        feed = Feed(
            self._run, self.cursor, self._config.every, everything=self.sink.needs_everything
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
                    at_least = "at least " if feed.stream.has_more else ""
                    self._log.warning(
                        f"{self.sink.name}: {at_least}{feed.waiting} records not sent in time; "
                        f"later: trimtab observe {self._run.root} --to {self.sink.name}"
                    )
                    return
                stop.wait(wait)
        finally:
            feed.close()
            self.sink.close()

    def _attempt(self, feed: Feed, stop: threading.Event) -> bool:
        """Send what is new; return whether the run is over and everything was sent."""
        standing = self.standing
        if not standing.status.is_over:
            self._over_since = None  # it may have been resumed
        elif self._over_since is None:
            self._over_since = time.monotonic()
        feed.poll()
        if not self._has_begun:
            self.sink.begin(_describe_run(self._run), self.cursor.memory)
            self._has_begun = True
        while True:
            batch = feed.batch()
            if len(batch) or batch.events:
                self._deliver(batch)
                feed.sent(self.cursor)
                self.cursor.save()
            elif feed.stream.has_more:
                feed.poll()  # a long journal is read piece by piece
            else:
                break
            if stop.is_set() or self._is_time_over():
                return False
        self.sink.poll()
        if not standing.status.is_over or self._is_waiting_for_report(feed):
            return False
        self.sink.finish(standing.status)
        self.cursor.save()
        return True

    def _deliver(self, batch: Block) -> None:
        """Send a batch; each status that the sink does not know comes with the one before."""
        status, events = self.cursor.status, []
        for event in batch.events:
            if event.kind == RUN_STATUS:
                before, status = status, parse_status(event.facts.get("status"))
                if status is before:
                    continue
                facts = {**event.facts, "status": status.value, "before": before.value}
                event = replace(event, facts=facts)
            events.append(event)
        if len(batch) or events:
            self._record_refusals(self._delivery.deliver(replace(batch, events=tuple(events))))
        if status is not self.cursor.status:
            self._log.info(f"{self.sink.name}: the run is {status.value}")
            self.cursor.status = status

    def _is_waiting_for_report(self, feed: Feed) -> bool:
        """Return whether the observer may still write what belongs to the end of the run."""
        is_late = time.monotonic() - (self._over_since or 0.0) > POSTMORTEM_SECONDS
        return not feed.stream.is_written and not is_late

    def _is_time_over(self) -> bool:
        if self._give_up_seconds is None or self._over_since is None:
            return False
        return time.monotonic() - self._over_since > self._give_up_seconds

    def _record_refusals(self, refusals: list[Refusal]) -> None:
        """Count refused points; the first of each kind is a note on the run."""
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
        problem = SECRETS.describe(error)
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


def _describe_run(run: RunDirectory) -> ShippedRun:
    try:
        manifest = run.read_manifest()
    except JournalError:
        manifest = {}
    return ShippedRun(name=run.root.resolve().name, home=run.home, manifest=manifest)


OWN_SINKS = {
    "mlflow": "trimtab.integrations.sinks.mlflow_sink:MlflowSink",
    "wandb": "trimtab.integrations.sinks.wandb_sink:WandbSink",
    "tensorboard": "trimtab.integrations.sinks.tensorboard_sink:TensorBoardSink",
    "prometheus": "trimtab.integrations.sinks.prometheus_sink:PrometheusSink",
    "alerts": "trimtab.integrations.alerts.alert_sink:AlertSink",
}
"""They win over an installed sink of the same name."""


def find_sink(name: str) -> Sink:
    """Return the sink of a name, or of an import path such as `pkg.module:Sink`.

    Raises ConfigError.
    """
    return find_plugin(
        name,
        SINKS,
        Sink,  # type: ignore[type-abstract]
        needs="a name, needs_everything, begin, send, finish or close",
        own=OWN_SINKS,
    )


def open_sinks(names: Iterable[str], log: ShipLog) -> list[Sink]:
    """Return the sinks of some names; one that cannot be used is logged and left out."""
    sinks = []
    for name in dict.fromkeys(names):
        try:
            sinks.append(find_sink(name))
        except TrimtabError as error:  # the others are sent to all the same
            log.warning(f"{name} is left out: {SECRETS.hide(str(error))}")
    return sinks


def shadowed() -> list[str]:
    """Return the installed sinks that trimtab's own sinks of the same name replace."""
    return [str(plugin) for plugin in list_plugins(SINKS) if plugin.name in OWN_SINKS]
