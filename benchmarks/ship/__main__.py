"""`scripts/bench ship`: about ten minutes; needs PostgreSQL, and MLflow with psycopg2."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish, table
from benchmarks.ship.killing import Outcome, ship_while_killing
from benchmarks.ship.proxy import ship_through_proxy
from benchmarks.ship.step_cost import PAIRS, STEPS, measure

HEADER = ["what", "measured", "bar"]
SERVERS = (
    "A real MLflow server on a real PostgreSQL, both on loopback. Points are the finite values in "
    "the journal; a mark is a record with a value that is not finite.\n\n"
)


def killing(root: Path, steps: int) -> None:
    """Everything dies, again and again."""
    outcome = ship_while_killing(root, steps=steps, per_second=15, kills=2)
    kills = (
        f"{outcome.server_kills} SIGKILLs of the server, {outcome.database_kills} of PostgreSQL "
        f"and its children, {outcome.shipper_kills} of the shipper"
    )
    rows = [
        [kills, _arrived(outcome), _wanted(outcome)],
        ["longest append meanwhile", f"{outcome.worst_append_ms:.1f} ms", "-"],
    ]
    publish("Sending to MLflow: kills", "scripts/bench ship killing", SERVERS + table(HEADER, rows))


def proxy(root: Path, steps: int) -> None:
    """Most replies do not arrive."""
    outcome, fates = ship_through_proxy(root, steps=steps // 4)
    faults = (
        f"{fates['lost']} replies lost, {fates['cut']} cut, {fates['delayed']} delayed beyond the "
        f"deadline, {fates['kept']} kept"
    )
    rows = [[faults, _arrived(outcome), _wanted(outcome)]]
    publish("Sending to MLflow: replies", "scripts/bench ship proxy", SERVERS + table(HEADER, rows))


def cost(root: Path, steps: int) -> None:
    """What training pays."""
    found = measure(root)
    wall = f"the same, median wall time of {found.median_ms:.1f} ms"
    rows = [
        ["step with a shipper, processor time of the trainer", f"{found.cpu:.3f}", "1.01"],
        [wall, f"{found.wall:.3f}", "1.01 on an idle machine"],
        ["longest append", f"{found.worst_append_ms:.1f} ms", "-"],
        ["`watch` takes longer by", f"{found.start_ms:.0f} ms", "-"],
    ]
    body = f"{PAIRS} pairs of loops of {STEPS} steps, with and without a shipper to MLflow.\n\n"
    publish("Sending to MLflow: step", "scripts/bench ship cost", body + table(HEADER, rows))


PARTS = {"killing": killing, "proxy": proxy, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ship")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--steps", type=int, default=1000, help="steps of 20 points each")
    arguments = parser.parse_args()
    for name in arguments.part or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # the database runs as a different user
            PARTS[name](Path(folder) / name, arguments.steps)


def _arrived(outcome: Outcome) -> str:
    rows = f"{outcome.rows:,} rows, {outcome.distinct:,} distinct"
    return f"{rows}, {outcome.marked} marks, {outcome.runs} run, in {outcome.seconds:.0f} s"


def _wanted(outcome: Outcome) -> str:
    return f"{outcome.points:,} points, each once, {outcome.marks} marks, 1 run"


if __name__ == "__main__":
    main()
