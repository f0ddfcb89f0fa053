"""`scripts/bench ship faults`: minutes; needs PostgreSQL, and MLflow with psycopg2."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish
from benchmarks.ship.killing import ship_while_killing

SERVERS = (
    "A real MLflow server on a real PostgreSQL, both on loopback. Points are the finite values in "
    "the journal; a mark is a record with a value that is not finite."
)


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
