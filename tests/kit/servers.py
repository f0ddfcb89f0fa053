"""Real servers on loopback for the tests: MLflow's REST interface, and one that misbehaves."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAME = re.compile(r"[0-9A-Za-z_\-. :/]{1,250}")
"""The metric names that MLflow accepts."""


class Server(ThreadingHTTPServer):
    """A server whose handler keeps what it got in here."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle is part of the tests."""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Quiet(BaseHTTPRequestHandler):
    """Answers JSON, logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Mlflow(Server):
    """MLflow's documented REST interface, as far as it is used; rows have MLflow's primary key."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(_MlflowHandler, port)
        self.runs: dict[str, dict[str, Any]] = {}
        self.metrics: set[tuple[str, str, int, int, str]] = set()
        self.num_batches = 0
        self.artifacts: dict[str, bytes] = {}
        self.authorization: set[str | None] = set()
        self.num_posts = 0
        self.loses: Callable[[int], bool] = lambda number: False
        """Whether the request of this number is carried out and then gets no reply."""

    def only_run(self) -> dict[str, Any]:
        (run,) = self.runs.values()
        return run


class _MlflowHandler(Quiet):
    server: Mlflow

    def do_GET(self) -> None:
        self.server.authorization.add(self.headers.get("Authorization"))
        call, query = self._call()
        if call == "runs/get" and (run := self.server.runs.get(query["run_id"])):
            self.answer(200, {"run": {"info": run["info"]}})
        else:
            self.answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})

    def do_PUT(self) -> None:
        self.server.artifacts[self.path] = self.body()
        self.answer(200, {})

    def do_POST(self) -> None:
        self.server.authorization.add(self.headers.get("Authorization"))
        call, _ = self._call()
        try:
            value = self._answers[call](self, json.loads(self.body()))
        except ValueError as error:
            self.answer(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": str(error)})
            return
        self.server.num_posts += 1
        if self.server.loses(self.server.num_posts):
            self.close_connection = True
            return
        self.answer(200, value)

    def _call(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return parts.path.removeprefix("/api/2.0/mlflow/"), query

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        run_id = f"{len(self.server.runs):032x}"
        info = {
            "run_id": run_id,
            "experiment_id": asked["experiment_id"],
            "start_time": asked["start_time"],
            "artifact_uri": f"mlflow-artifacts:/0/{run_id}/artifacts",
        }
        tags = {tag["key"]: tag["value"] for tag in asked["tags"]}
        self.server.runs[run_id] = {"info": info, "tags": tags, "params": {}, "status": "RUNNING"}
        return {"run": {"info": info}}

    def _search(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = re.fullmatch(r"tags\.`trimtab\.key` = '(\w+)'", asked["filter"])
        assert found
        runs = [r for r in self.server.runs.values() if r["tags"].get("trimtab.key") == found[1]]
        return {"runs": [{"info": run["info"]} for run in runs]} if runs else {}

    def _update(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.server.runs[asked["run_id"]] |= asked
        return {}

    def _log_batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        run = self.server.runs[asked["run_id"]]
        if len(asked["metrics"]) > 1000:
            raise ValueError("A batch logging request can contain at most 1000 metrics.")
        for metric in asked["metrics"]:
            if not NAME.fullmatch(metric["key"]):
                raise ValueError(f"Invalid metric name: {metric['key']!r}")
            if metric["key"].endswith("/forbidden"):
                raise ValueError("this key is forbidden")
        for param in asked["params"]:
            if run["params"].setdefault(param["key"], param["value"]) != param["value"]:
                raise ValueError("Changing param values is not allowed.")
        run["tags"] |= {tag["key"]: tag["value"] for tag in asked["tags"]}
        self.server.num_batches += 1
        for metric in asked["metrics"]:
            row = (metric["key"], metric["timestamp"], metric["step"], str(metric["value"]))
            self.server.metrics.add((asked["run_id"], *row))
        return {}

    _answers = {  # noqa: RUF012
        "runs/create": _create,
        "runs/search": _search,
        "runs/update": _update,
        "runs/log-batch": _log_batch,
    }


class Receiver(Server):
    """Keeps what is posted to it; `behaviour` says how it answers."""

    def __init__(self, behaviour: str = "ok") -> None:
        super().__init__(_ReceiverHandler)
        self.behaviour = behaviour
        self.elsewhere = ""
        """Where a redirect leads."""
        self.posted: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []


class _ReceiverHandler(Quiet):
    server: Receiver

    def do_POST(self) -> None:
        body = self.body()
        self.server.posted.append((self.path, json.loads(body) if body else None))
        self.server.headers.append(dict(self.headers))
        match self.server.behaviour:
            case "ok":
                self.answer(200, {})
            case "echo":  # as servers do that help to debug a request
                told = f"Cannot POST {self.path} {self.headers['Authorization']}"
                filler = "x" * (290 - len("Cannot POST "))  # the secret lies on the usual cut
                self.answer(400, {"error": told, "more": filler + told})
            case "500":
                self.answer(500, {"error": f"no {self.path}"})
            case "redirect":
                self.send_response(307)
                self.send_header("Location", self.server.elsewhere)
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "silent":
                time.sleep(20)
            case "dripping":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                for _ in range(100):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.2)
            case "dripping header":
                for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 100:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.2)

    do_GET = do_POST
