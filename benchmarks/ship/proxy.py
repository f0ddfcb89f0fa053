"""A proxy between shipper and server that loses, cuts and delays replies."""

import http.client
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.kit.servers import Server, serving

from benchmarks.ship.killing import Outcome, count, expected, write_run
from benchmarks.ship.servers import MlflowServer, Postgres
from trimtab.core.config import ShipConfig
from trimtab.integrations.sinks.mlflow_sink import MlflowSink
from trimtab.journal import RunDirectory
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper

DEADLINE, DELAY = 3.0, 4.0
"""The deadline of a request here, and a delay beyond it."""


class Proxy(Server):
    """Carries out every request; of the replies a fifth each is lost, cut, and delayed."""

    def __init__(self, port: int, seed: int = 0) -> None:
        super().__init__(_Handler)
        self.target = port
        self.rng = random.Random(seed)
        self.fates: Counter[str] = Counter()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        target = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)
        target.request(self.command, self.path, body, {"Content-Type": "application/json"})
        reply = target.getresponse()
        data = reply.read()
        target.close()
        fate = self.server.rng.choice(["lost", "cut", "delayed", "kept", "kept"])
        self.server.fates[fate] += 1
        if fate == "lost":
            return
        if fate == "delayed":
            time.sleep(DELAY)
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(data) + (10 if fate == "cut" else 0)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = forward


def ship_through_proxy(folder: Path, *, steps: int) -> tuple[Outcome, Counter[str]]:
    """Ship a finished run through the proxy."""
    outcome = expected(steps)
    run = RunDirectory(folder / "run")
    write_run(run, steps, per_second=1e6)
    with database_and_server(folder) as (database, server), serving(Proxy(server.port)) as proxy:
        assert isinstance(proxy, Proxy)
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_URI", proxy.url)
            patch.setenv("NO_PROXY", "127.0.0.1")
            patch.setattr("trimtab.integrations.sinks.mlflow_sink.REQUEST_SECONDS", DEADLINE)
            config = ShipConfig(every=1)
            Shipper(run, [MlflowSink()], config, ShipLog(run, None)).run()
        outcome.seconds = time.monotonic() - began
        count(database, outcome)
    return outcome, proxy.fates


@contextmanager
def database_and_server(folder: Path) -> Iterator[tuple[Postgres, MlflowServer]]:
    database = Postgres(folder / "postgres")
    server = MlflowServer(folder / "mlflow", database.uri)
    try:
        yield database, server
    finally:
        server.kill()
        database.kill()
