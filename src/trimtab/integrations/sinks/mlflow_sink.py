"""MLflow: metrics, tags and post-mortems of a run, by its REST interface.

MLflow's own client is not used: when the server dies it holds its caller for minutes (247 s
measured), and its queue loses points without an error.

Exactly once: the primary key of a metric is (run, key, timestamp, step, value), and the timestamp
is the journal's clock. A batch that is sent again is the same rows.

Values that are not finite are left out, and `trimtab/nonfinite` marks their step: MLflow's page
hides a metric whose last value is NaN, so the loss of a run that diverged would not be shown, and
an infinity is stored as 1.8e308, which flattens the chart.
"""

import contextlib
import datetime
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from trimtab.core.block import Block
from trimtab.core.errors import ConfigError
from trimtab.core.escaping import escape_markdown
from trimtab.core.signals import CLOCK
from trimtab.core.sink import RUN_STATUS, Refused, RunStatus, ShippedRun, SinkMemory
from trimtab.integrations.incident_news import IncidentNews
from trimtab.integrations.sinks.rows import tracker_rows
from trimtab.journal.directory import read_postmortems
from trimtab.observe.shipping.transport import (
    SECRETS,
    Reply,
    basic_auth,
    post_json,
    send,
    split_credentials,
)

REQUEST_SECONDS = 30.0
"""The hard deadline of one request. Source: a batch of 1,000 points takes 0.2 s on an idle
PostgreSQL and up to 8 s on a busy one."""

MAX_METRICS, MAX_TAGS, MAX_PARAMS = 1000, 100, 100
"""What one `log-batch` accepts; one more is answered with 400."""

MAX_TAG_CHARS = 5000

KEY = "trimtab.key"

_PARAMETERS = ("mode", "dtype", "seed", "world", "model", "num_parameters", "optimizers", "torch")

_STATUS = {
    RunStatus.RUNNING: "RUNNING",
    RunStatus.STALLED: "RUNNING",
    RunStatus.DIED: "FAILED",
    RunStatus.ENDED: "FINISHED",
}


class MlflowSink:
    """Writes into the run of `MLFLOW_RUN_ID`, or into a run of its own."""

    name = "mlflow"
    needs_everything = False

    def __init__(self) -> None:
        self._rest = MlflowRest()
        self._given_run = os.environ.get("MLFLOW_RUN_ID")

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Find the run in MLflow, or create it."""
        self._run, self._memory = run, memory
        memory.values.setdefault("incidents", {})
        # Each answer is saved at once, so that progress is made where most replies are lost.
        if "run_id" not in memory.values:
            found = self._get_run(self._given_run) if self._given_run else self._find_or_create()
            memory.values["run_id"] = run_id = str(found["run_id"])
            memory.values["artifact_uri"] = str(found.get("artifact_uri", ""))
            experiment = f"{self._rest.address}/#/experiments/{found.get('experiment_id', '0')}"
            memory.values["link"] = f"{experiment}/runs/{run_id}"
            memory.save()
        self._run_id = str(memory.values["run_id"])
        if not memory.values.get("has_parameters"):
            with contextlib.suppress(Refused):  # those of an earlier launch stay: they are fixed
                self._log(params=self._parameters())
            memory.values["has_parameters"] = True
            memory.save()

    def send(self, block: Block) -> None:
        """Send metrics in batches, and incidents as tags."""
        metrics = [
            {"key": name, "value": value, "timestamp": round(1000 * row.clock), "step": row.step}
            for row in tracker_rows(block)
            for name, value in row.values.items()
            if math.isfinite(value)
        ]
        if len(block):
            self._memory.values["clock"] = float(block.column(CLOCK).values[-1])
        for start in range(0, len(metrics), MAX_METRICS):
            self._log(metrics=metrics[start : start + MAX_METRICS])
        for event in block.events:
            if event.kind == RUN_STATUS:
                self._set_status(RunStatus(event.facts["status"]))
            elif (news := IncidentNews.from_event(event)) is not None:
                self._tag_incident(news)

    def poll(self) -> None:
        """Do nothing: nothing is due by the clock."""

    def finish(self, status: RunStatus) -> None:
        """Attach the post-mortems and describe the run; the status came as an event."""
        stored = True
        for name, content in read_postmortems(self._run.home):
            uri = str(self._memory.values.get("artifact_uri", ""))
            stored = stored and self._rest.put_artifact(uri, f"trimtab/{name}", content)
        if not stored:
            self._log(tags={"trimtab.postmortems": f"on the training machine: {self._run.home}"})
        lines = self._memory.values["incidents"].get("lines", {})
        # The description of the user's own run is the user's.
        if lines and not self._given_run:
            text = "\n".join(f"- {escape_markdown(lines[number])}" for number in sorted(lines))
            self._log(tags={"mlflow.note.content": f"Incidents:\n\n{text}"[:MAX_TAG_CHARS]})

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _get_run(self, run_id: str) -> dict[str, Any]:
        found = self._rest.get("runs/get", run_id=run_id).require_success().json()
        return dict(found["run"]["info"])

    def _find_or_create(self) -> dict[str, Any]:
        """Return the run with our key; creating is not idempotent, so the key is saved first."""
        memory = self._memory
        if KEY not in memory.values:
            memory.values[KEY] = uuid.uuid4().hex
            memory.save()
        key = memory.values[KEY]
        experiment = self._experiment()
        found = self._rest.post(
            "runs/search",
            {"experiment_ids": [experiment], "filter": f"tags.`{KEY}` = '{key}'", "max_results": 1},
        )
        for run in found.get("runs", []):
            return dict(run["info"])
        made = self._rest.post(
            "runs/create",
            {
                "experiment_id": experiment,
                "run_name": self._run.name,
                "start_time": _began(self._run.manifest.get("began")),
                "tags": [
                    {"key": KEY, "value": key},
                    {"key": "trimtab.status", "value": RunStatus.RUNNING.value},
                    {"key": "mlflow.source.name", "value": "trimtab"},
                    {"key": "trimtab.version", "value": str(self._run.manifest.get("trimtab"))},
                ],
            },
        )
        return dict(made["run"]["info"])

    def _experiment(self) -> str:
        given = os.environ.get("MLFLOW_EXPERIMENT_ID")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if given or not name:
            return given or "0"
        reply = self._rest.get("experiments/get-by-name", experiment_name=name)
        if reply.status == 404:
            # Without the kind, MLflow 3 shows a new experiment as one of prompts and agents.
            kind = {"key": "mlflow.experimentKind", "value": "custom_model_development"}
            made = self._rest.post("experiments/create", {"name": name, "tags": [kind]})
            return str(made["experiment_id"])
        return str(reply.require_success().json()["experiment"]["experiment_id"])

    def _parameters(self) -> dict[str, str]:
        values = {name: self._run.manifest.get(name) for name in _PARAMETERS}
        return {f"trimtab.{n}": str(value) for n, value in values.items() if value is not None}

    def _tag_incident(self, news: IncidentNews) -> None:
        incidents = self._memory.values["incidents"]
        incidents["count"] = max(incidents.get("count", 0), news.number)
        incidents.setdefault("lines", {})[f"{news.number:04d}"] = news.describe()
        tags = {
            "trimtab.incidents": str(incidents["count"]),
            f"trimtab.incident.{news.number:04d}": news.describe()[:MAX_TAG_CHARS],
        }
        rank = news.incident_class.severity
        if rank >= incidents.get("worst_rank", 0):
            incidents["worst_rank"] = rank
            tags["trimtab.worst_class"] = news.incident_class.value
        self._log(tags=tags)

    def _set_status(self, status: RunStatus) -> None:
        self._log(tags={"trimtab.status": status.value})
        if not self._given_run:  # the status of the user's own run is the user's
            update = {"run_id": self._run_id, "status": _STATUS[status]}
            clock = self._memory.values.get("clock") or time.time()
            end = {"end_time": round(1000 * clock)} if status.is_over else {}
            self._rest.post("runs/update", update | end)

    def _log(
        self,
        metrics: Sequence[dict[str, Any]] = (),
        tags: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
    ) -> None:
        values = {
            "run_id": self._run_id,
            "metrics": list(metrics),
            "tags": _pairs(tags, MAX_TAGS),
            "params": _pairs(params, MAX_PARAMS),
        }
        self._rest.post("runs/log-batch", values)


def _began(text: Any) -> int:
    """Return the start of the run in milliseconds, as its manifest has it."""
    try:
        return round(1000 * datetime.datetime.fromisoformat(text).timestamp())
    except (TypeError, ValueError):
        return round(1000 * time.time())


def _pairs(values: dict[str, str] | None, limit: int) -> list[dict[str, str]]:
    pairs = [{"key": key, "value": value} for key, value in (values or {}).items()]
    return pairs[:limit]


class MlflowRest:
    """Requests to the server of `MLFLOW_TRACKING_URI`."""

    def __init__(self) -> None:
        """Read the address and credentials from the environment; raises ConfigError."""
        address = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
        if not address.startswith(("http://", "https://")):
            raise ConfigError(
                "MLFLOW_TRACKING_URI must be the http(s) address of an MLflow server; start one "
                "with `mlflow server`, or `mlflow server --backend-store-uri ...` for a database"
            )
        bare, self._headers = split_credentials(address)
        self.address = bare.rstrip("/")
        """Without user and password."""
        token = os.environ.get("MLFLOW_TRACKING_TOKEN")
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        if bare != address:
            SECRETS.add(address.partition("//")[2].rpartition("@")[0])
        if token:
            SECRETS.add(token)
            self._headers = {"Authorization": f"Bearer {token}"}
        elif user:
            SECRETS.add(password)
            self._headers = basic_auth(user, password)

    def post(self, call: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a call such as `runs/create`."""
        url = f"{self.address}/api/2.0/mlflow/{call}"
        return post_json(url, value, REQUEST_SECONDS, self._headers).require_success().json()

    def get(self, call: str, **query: str) -> Reply:
        """Return the answer to a call that only reads, whatever its status."""
        url = f"{self.address}/api/2.0/mlflow/{call}?{urlencode(query)}"
        return send("GET", url, headers=self._headers, seconds=REQUEST_SECONDS)

    def put_artifact(self, artifact_uri: str, name: str, content: bytes) -> bool:
        """Store a file of a run through the server; return False if its artifacts are elsewhere."""
        scheme, _, folder = artifact_uri.partition(":")
        if scheme != "mlflow-artifacts":
            return False
        path = quote(f"{folder.lstrip('/')}/{name}")
        url = f"{self.address}/api/2.0/mlflow-artifacts/artifacts/{path}"
        send("PUT", url, content, self._headers, seconds=REQUEST_SECONDS).require_success()
        return True
