"""`scripts/bench ship faults`: minutes; needs PostgreSQL, and MLflow with psycopg2."""

import argparse
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import publish
from benchmarks.ship.servers import MlflowServer, Postgres
from trimtab.journal import JournalWriter, RunDirectory

SERVERS = (
    "A real MLflow server on a real PostgreSQL, both on loopback. Points are the finite values in "
    "the journal; a mark is a record with a value that is not finite."
)


SIGNALS = 20


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    points: int
    """Finite values that were journalled."""
    marks: int
    """Records with a value that is not finite."""
    rows: int = 0
    distinct: int = 0
    """Rows in the database, and pairs of key and step."""
    marked: int = 0
    """Rows that mark a record with a value that is not finite."""
    runs: int = 0
    server_kills: int = 0
    database_kills: int = 0
    shipper_kills: int = 0
    seconds: float = 0.0


def expected(steps: int) -> Outcome:
    """What must be in the database after this many steps."""
    marks = sum(step % 100 == 50 for step in range(steps))
    return Outcome(points=steps * SIGNALS - marks, marks=marks)


def signals_of(step: int) -> dict[str, float]:
    """Twenty signals of a step; a loss that is NaN at every hundredth."""
    values = {f"signal_{number:02d}": step + number / 100 for number in range(SIGNALS - 1)}
    return values | {"loss": math.nan if step % 100 == 50 else 3.0, "clock": time.time()}


def write_run(run: RunDirectory, steps: int, per_second: float) -> None:
    """Write a run at the pace of training."""
    run.write_manifest({"model": "bench", "mode": "observe"})
    with JournalWriter(run) as journal:
        for step in range(steps):
            journal.append(step, signals_of(step))
            time.sleep(1 / per_second)


def ship_while_killing(
    folder: Path, *, steps: int, per_second: float, kills: int, seed: int = 0
) -> Outcome:
    """Kill the server and the database this many times, and the shipper twice as often."""
    outcome = expected(steps)
    run = RunDirectory(folder / "run")
    database = Postgres(folder / "postgres")
    server = MlflowServer(folder / "mlflow", database.uri)
    began = time.monotonic()
    rng = random.Random(seed)
    writer = threading.Thread(target=write_run, args=(run, steps, per_second), daemon=True)
    writer.start()
    while not run.exists():
        time.sleep(0.05)
    shipper = start_shipper(run, server.url)
    try:
        for _ in range(kills):
            for victim in ("shipper", "server", "shipper", "database"):
                _wait_for_rows(database, 1)
                time.sleep(rng.uniform(0.5, 2.0))
                if victim == "shipper":
                    shipper.send_signal(signal.SIGKILL)
                    shipper.wait()
                    shipper = start_shipper(run, server.url)
                    outcome.shipper_kills += 1
                elif victim == "server":
                    server.kill()
                    time.sleep(1)
                    server.start()
                    server.wait()
                    outcome.server_kills += 1
                else:
                    database.kill()
                    time.sleep(1)
                    database.start()
                    outcome.database_kills += 1
        writer.join()
        shipper.wait(900)
        outcome.seconds = time.monotonic() - began
        count(database, outcome)
    finally:
        with contextlib.suppress(ProcessLookupError):
            shipper.kill()
        server.kill()
        database.kill()
    return outcome


def start_shipper(run: RunDirectory, url: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "trimtab.cli", "observe", str(run.root), "--to", "mlflow"),
            *("--set", "ship.every=1"),
        ],
        env={**os.environ, "MLFLOW_TRACKING_URI": url, "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def count(database: Postgres, outcome: Outcome) -> None:
    """Count what is in the database; `attempt` and `nonfinite` are not among the points."""
    ours = "key like 'trimtab/signal%' or key = 'trimtab/loss'"
    ((rows, distinct),) = database.query(
        "select count(*), count(distinct (key, step)) from metrics where " + ours
    )
    ((marked,),) = database.query("select count(*) from metrics where key = 'trimtab/nonfinite'")
    ((runs,),) = database.query("select count(*) from runs")
    outcome.rows, outcome.distinct, outcome.runs = int(rows), int(distinct), int(runs)
    outcome.marked = int(marked)


def _wait_for_rows(database: Postgres, rows: int) -> None:
    """Wait until something has arrived, so that no kill hits a run that has not begun."""
    end = time.monotonic() + 300
    while int(database.query("select count(*) from metrics")[0][0]) < rows:
        if time.monotonic() > end:
            raise TimeoutError("nothing arrives")
        time.sleep(0.5)


def main() -> None:
    """Let everything die, again and again, and publish what has arrived."""
    parser = argparse.ArgumentParser(prog="scripts/bench ship")
    parser.add_argument("part", choices=("faults",))
    parser.add_argument("--steps", type=int, default=1000, help="steps of 20 points each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the database runs as a different user
        found = ship_while_killing(Path(folder), steps=arguments.steps, per_second=15, kills=2)
    kills = (
        f"{found.server_kills} SIGKILLs of the server, {found.database_kills} of PostgreSQL "
        f"and its children, {found.shipper_kills} of the shipper"
    )
    arrived = (
        f"{found.rows:,} rows, {found.distinct:,} distinct, {found.marked} marks, "
        f"{found.runs} run, in {found.seconds:.0f} s"
    )
    wanted = f"{found.points:,} points, each once, {found.marks} marks, 1 run"
    row = (kills, arrived, wanted)
    publish("Sending to MLflow: faults", "scripts/bench ship faults", SERVERS, [row])


if __name__ == "__main__":
    main()
