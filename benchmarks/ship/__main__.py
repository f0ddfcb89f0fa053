"""`scripts/bench ship faults`: minutes; needs PostgreSQL, and MLflow with psycopg2."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish
from benchmarks.ship.killing import Outcome, ship_while_killing

SERVERS = (
    "A real MLflow server on a real PostgreSQL, both on loopback. Points are the finite values in "
    "the journal; a mark is a record with a value that is not finite."
)


def killing(root: Path, steps: int) -> tuple[str, str, str]:
    """Everything dies, again and again."""
    outcome = ship_while_killing(root, steps=steps, per_second=15, kills=2)
    kills = (
        f"{outcome.server_kills} SIGKILLs of the server, {outcome.database_kills} of PostgreSQL "
        f"and its children, {outcome.shipper_kills} of the shipper"
    )
    return kills, _arrived(outcome), _wanted(outcome)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ship")
    parser.add_argument("part", choices=("faults",))
    parser.add_argument("--steps", type=int, default=1000, help="steps of 20 points each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the database runs as a different user
        root = Path(folder)
        row = killing(root / "killing", arguments.steps)
    publish("Sending to MLflow: faults", "scripts/bench ship faults", SERVERS, [row])


def _arrived(outcome: Outcome) -> str:
    rows = f"{outcome.rows:,} rows, {outcome.distinct:,} distinct"
    return f"{rows}, {outcome.marked} marks, {outcome.runs} run, in {outcome.seconds:.0f} s"


def _wanted(outcome: Outcome) -> str:
    return f"{outcome.points:,} points, each once, {outcome.marks} marks, 1 run"


if __name__ == "__main__":
    main()
