"""Prometheus: metrics that it pulls from this machine, and the same as a text file.

    TRIMTAB_PROMETHEUS_PORT       the port on 127.0.0.1 (default 9464); 0 turns the server off
    TRIMTAB_PROMETHEUS_HOST       a different address to listen on
    TRIMTAB_PROMETHEUS_TEXTFILE   a folder for node_exporter's textfile collector

Every start reads the whole journal, so counters go on where they were.
"""

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trimtab.core.block import Block
from trimtab.core.errors import ConfigError
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.sinks.prometheus_text import RunMetrics
from trimtab.journal.atomic_file import replace_file

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
        """Add the records to the metrics."""
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
        """The file of a run that has ended goes; that of one that died stays and gets stale."""
        if self._file is not None and status is RunStatus.ENDED:
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop serving."""
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
        """Serve this from now on."""
        self.text = text.encode("utf-8")
        if not self._thread.is_alive():
            self._thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no problem of this process."""


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
