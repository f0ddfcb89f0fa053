"""PostgreSQL and MLflow as processes of the benchmark, on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

LONGEST_START = 300.0
"""Seconds that a server may take to start; MLflow needs 8 to 40 on an idle machine."""


class NotInstalled(Exception):
    """PostgreSQL or MLflow is missing here."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_mlflow() -> str:
    """The `mlflow` command, by TRIMTAB_MLFLOW or on the path."""
    found = os.environ.get("TRIMTAB_MLFLOW") or shutil.which("mlflow")
    if found is None:
        raise NotInstalled("needs mlflow and psycopg2; TRIMTAB_MLFLOW may name the command")
    return found


def find_postgres() -> Path:
    """The folder with PostgreSQL's programs, as Debian has it."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    raise NotInstalled("needs PostgreSQL (Debian: postgresql)")


class Postgres:
    """A database of its own; it does not run as root, so as the user postgres if need be."""

    def __init__(self, folder: Path) -> None:
        self._bin = find_postgres()
        self._data = folder / "data"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            for parent in folder.parents:
                if parent.owner() == "root" and parent != Path("/"):
                    parent.chmod(parent.stat().st_mode | 0o011)
        options = ("-U", "trimtab", "-A", "trust", "--no-sync")
        self._run([self._bin / "initdb", "-D", self._data, *options])
        self.start()
        self._run([self._bin / "createdb", *self._where(), "mlflow"])

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://trimtab@127.0.0.1:{self._port}/mlflow"

    def start(self) -> None:
        """Start, or recover after a kill."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        options = ("-p", str(self._port), "-k", "", "-c", "listen_addresses=127.0.0.1")
        command: list[str | Path] = [self._bin / "postgres", "-D", self._data, *options]
        self._process = subprocess.Popen(
            [*_as_postgres(), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = time.monotonic() + LONGEST_START
        while not self._is_ready():
            if time.monotonic() > end:
                raise TimeoutError("PostgreSQL does not start")
            time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL to the postmaster and all of its children."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def query(self, sql: str) -> list[list[str]]:
        found = self._run([self._bin / "psql", *self._where(), "-d", "mlflow", "-At", "-c", sql])
        return [line.split("|") for line in found.splitlines()]

    def _where(self) -> list[str | Path]:
        return ["-h", "127.0.0.1", "-p", str(self._port), "-U", "trimtab"]

    def _is_ready(self) -> bool:
        command = [self._bin / "pg_isready", *self._where()]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _run(self, command: Sequence[str | Path]) -> str:
        done = subprocess.run(
            [*_as_postgres(), *command], check=True, capture_output=True, text=True, cwd="/"
        )
        return done.stdout


class MlflowServer:
    """An MLflow server with all of its workers in one process group."""

    def __init__(self, folder: Path, database: str) -> None:
        self._command = find_mlflow()
        self._folder = folder
        self._database = database
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        folder.mkdir(parents=True)
        self.start()
        self.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._command, "server", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--backend-store-uri", self._database, "--workers", "1"),
                    *("--artifacts-destination", str(self._folder / "artifacts")),
                ],
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | _NO_OURS,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + LONGEST_START
        while time.monotonic() < end and self._process and self._process.poll() is None:
            try:
                with opener.open(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.3)
        raise TimeoutError(f"MLflow does not start; see {self._folder / 'server.log'}")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


_NO_OURS = {"PYTHONPATH": "", "MLFLOW_TRACKING_URI": ""}


def _as_postgres() -> list[str | Path]:
    if os.getuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
