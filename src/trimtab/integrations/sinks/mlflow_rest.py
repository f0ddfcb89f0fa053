"""The requests to an MLflow server: its REST interface, by the standard library.

The client is not used: when the server dies it holds its caller for minutes (247 s measured), and
its queue loses points without an error.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from trimtab.core.errors import ConfigError
from trimtab.integrations.transport.http import (
    Reply,
    basic_auth,
    post_json,
    send,
    split_credentials,
)
from trimtab.integrations.transport.secrets import SECRETS

REQUEST_SECONDS = 30.0
"""The hard deadline of one request. Source: a batch of 1,000 points takes 0.2 s on an idle
PostgreSQL and up to 8 s on a busy one."""

MAX_METRICS, MAX_TAGS, MAX_PARAMS = 1000, 100, 100
"""What one `log-batch` accepts; one more is answered with 400."""

MAX_TAG_CHARS = 5000


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
        """The answer to a call such as `runs/create`."""
        url = f"{self.address}/api/2.0/mlflow/{call}"
        return post_json(url, value, REQUEST_SECONDS, self._headers).require_success().json()

    def get(self, call: str, **query: str) -> Reply:
        """The answer to a call that only reads, whatever its status."""
        url = f"{self.address}/api/2.0/mlflow/{call}?{urlencode(query)}"
        return send("GET", url, headers=self._headers, seconds=REQUEST_SECONDS)

    def put_artifact(self, artifact_uri: str, name: str, content: bytes) -> bool:
        """Store a file of a run through the server; False if its artifacts are elsewhere."""
        scheme, _, folder = artifact_uri.partition(":")
        if scheme != "mlflow-artifacts":
            return False
        path = quote(f"{folder.lstrip('/')}/{name}")
        url = f"{self.address}/api/2.0/mlflow-artifacts/artifacts/{path}"
        send("PUT", url, content, self._headers, seconds=REQUEST_SECONDS).require_success()
        return True
