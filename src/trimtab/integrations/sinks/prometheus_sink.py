"""Prometheus: metrics that it pulls from this machine, and the same as a text file.

    TRIMTAB_PROMETHEUS_PORT       the port on 127.0.0.1 (default 9464); 0 turns the server off
    TRIMTAB_PROMETHEUS_HOST       a different address to listen on
    TRIMTAB_PROMETHEUS_TEXTFILE   a folder for node_exporter's textfile collector

Every start reads the whole journal, so counters go on where they were.

Few series: by run, and incidents by class. Never by layer, step or incident: Prometheus keeps a
series for each value of a label. It is a dashboard; the journal is the record.
"""

import math
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.errors import ConfigError
from trimtab.core.events import UNDO
from trimtab.core.incidents import IncidentClass
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.incident_news import IncidentNews
from trimtab.journal.files import replace_file
from trimtab.observe.shipping.feed import NONFINITE

DEFAULT_PORT = 9464

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_INFO = ("model", "world", "trimtab", "mode")


class PrometheusSink:
    """Serves and writes the metrics of one run."""

    name = "prometheus"
    needs_everything = True

    def __init__(self) -> None:
        given = os.environ.get("TRIMTAB_PROMETHEUS_PORT", str(DEFAULT_PORT))
        if not given.isdecimal() or int(given) > 65535:
            raise ConfigError(f"TRIMTAB_PROMETHEUS_PORT must be a port, got {given!r}")
        self._port = int(given)
        self._host = os.environ.get("TRIMTAB_PROMETHEUS_HOST", "127.0.0.1")
        self._folder = os.environ.get("TRIMTAB_PROMETHEUS_TEXTFILE")
        if not self._port and not self._folder:
            raise ConfigError("TRIMTAB_PROMETHEUS_PORT is 0 and TRIMTAB_PROMETHEUS_TEXTFILE unset")
        self._server: _Server | None = None

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Start from nothing; the server starts with the first records."""
        info = {name: str(run.manifest.get(name, "")) for name in _INFO}
        self._metrics = RunMetrics(run.name, info)
        self._is_new = False
        self._file = Path(self._folder) / f"trimtab-{run.name}.prom" if self._folder else None

    def send(self, block: Block) -> None:
        if self._port and self._server is None:  # first, so that a port in use loses nothing
            self._server = _Server((self._host, self._port))
        self._metrics.update(block)
        self._is_new = True

    def poll(self) -> None:
        """Show the metrics once everything was sent: half of a run would look like a restart."""
        if not self._is_new:
            return
        text = self._metrics.text()
        if self._server is not None:
            self._server.show(text)
        if self._file is not None:
            replace_file(self._file, text)
        self._is_new = False

    def finish(self, status: RunStatus) -> None:
        """Remove the file of a run that has ended; that of one that died stays and gets stale."""
        if self._file is not None and status is RunStatus.ENDED:
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Serves one text at /metrics."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.text = b""
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def show(self, text: str) -> None:
        self.text = text.encode("utf-8")
        if not self._thread.is_alive():
            self._thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that leaves is no problem of this process."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        """Answer with the metrics."""
        is_found = self.path.partition("?")[0] == "/metrics"
        body = self.server.text if is_found else b"the metrics are at /metrics\n"
        self.send_response(200 if is_found else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape every few seconds is no news."""


_GAUGES = {
    signals.LOSS: ("trimtab_loss", "Training loss of the last step."),
    signals.GRAD_NORM: ("trimtab_grad_norm", "Gradient norm before clipping, last step."),
    signals.LR: ("trimtab_learning_rate", "Learning rate of the last step."),
}


class RunMetrics:
    """Adds up a run from its first record on; a counter never goes back, though the step may."""

    def __init__(self, run: str, info: Mapping[str, str]) -> None:
        self._run = run
        self._info = {"run": run, **info}
        self._step = 0
        self._clock = math.nan
        self._latest: dict[str, float] = {}
        self._steps = self._discarded = self._nonfinite = self._undos = 0
        self._tokens = 0.0
        self._classes: set[tuple[int, IncidentClass]] = set()
        """Each class that an incident was given: one that gets worse counts in both."""
        self._open: set[int] = set()
        self._dismissed: set[int] = set()

    def update(self, block: Block) -> None:
        if len(block):
            self._step = int(block.step[-1])
            self._clock = float(block.column(signals.CLOCK).values[-1])
        for name in _GAUGES:
            column = block.column(name)
            if column.recorded:
                self._latest[name] = float(column.values[column.present][-1])
        self._steps += len(block)
        self._discarded += _count(block, signals.DISCARDED)
        self._nonfinite += _count(block, NONFINITE)
        tokens = block.column(signals.TOKENS)
        self._tokens += float(tokens.values[tokens.finite].sum())
        for event in block.events:
            self._undos += event.kind == UNDO
            if (news := IncidentNews.from_event(event)) is not None:
                self._add_incident(news)

    def text(self) -> str:
        return "".join(self._lines())

    def _add_incident(self, news: IncidentNews) -> None:
        if news.incident_class is not IncidentClass.OPEN:
            self._classes.add((news.number, news.incident_class))
        if news.dismissal:
            self._dismissed.add(news.number)
        if news.is_over:
            self._open.discard(news.number)
        elif news.number not in self._dismissed:
            self._open.add(news.number)

    def _lines(self) -> Iterator[str]:
        yield from _family("trimtab_run_info", "gauge", "What the run is.", [(self._info, 1.0)])
        yield from self._one("trimtab_step", "gauge", "Last step; it may go back.", self._step)
        for name, (metric, help_text) in _GAUGES.items():
            if name in self._latest:
                yield from self._one(metric, "gauge", help_text, self._latest[name])
        if not math.isnan(self._clock):
            help_text = "Unix time of the last record."
            yield from self._one(
                "trimtab_last_step_timestamp_seconds", "gauge", help_text, self._clock
            )
        for name, value, help_text in (
            ("trimtab_steps_total", self._steps, "Steps, discarded ones included."),
            ("trimtab_tokens_total", self._tokens, "Tokens, those of discarded steps included."),
            ("trimtab_steps_discarded_total", self._discarded, "Steps kept from the weights."),
            ("trimtab_nonfinite_steps_total", self._nonfinite, "Steps with NaN or infinity."),
            ("trimtab_undos_total", self._undos, "Weights restored from a snapshot."),
        ):
            yield from self._one(name, "counter", help_text, value)
        yield from self._incident_lines()

    def _incident_lines(self) -> Iterator[str]:
        # All classes from the start: `increase` needs the 0 before the first incident.
        counts = dict.fromkeys(IncidentClass, 0.0)
        for _, kind in self._classes:
            counts[kind] += 1
        samples = [({"run": self._run, "class": kind.value}, n) for kind, n in counts.items()]
        help_text = "Incidents by class, once it is known."
        yield from _family("trimtab_incidents_total", "counter", help_text, samples)
        help_text = "Incidents that are open."
        yield from self._one("trimtab_incidents_open", "gauge", help_text, len(self._open))

    def _one(self, name: str, kind: str, help_text: str, value: float) -> Iterator[str]:
        return _family(name, kind, help_text, [({"run": self._run}, value)])


def _family(
    name: str, kind: str, help_text: str, samples: list[tuple[dict[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        yield f"{name}{{{inner}}} {_number(value)}\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _count(block: Block, name: str) -> int:
    column = block.column(name)
    return int((column.values[column.present] > 0).sum())
