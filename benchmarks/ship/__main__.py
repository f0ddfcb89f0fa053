"""`scripts/bench ship faults|cost`: ten minutes; needs PostgreSQL, and MLflow with psycopg2."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish
from benchmarks.ship.killing import Outcome, ship_while_killing
from benchmarks.ship.proxy import ship_through_proxy
from benchmarks.ship.step_cost import PAIRS, STEPS, measure

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


def proxy(root: Path, steps: int) -> tuple[str, str, str]:
    """Most replies do not arrive."""
    outcome, fates = ship_through_proxy(root, steps=steps // 4)
    faults = (
        f"{fates['lost']} replies lost, {fates['cut']} cut, {fates['delayed']} delayed beyond the "
        f"deadline, {fates['kept']} kept"
    )
    return faults, _arrived(outcome), _wanted(outcome)


def publish_cost(root: Path) -> None:
    """What training pays."""
    found = measure(root)
    body = (
        f"{PAIRS} pairs of loops of {STEPS} steps, with and without a shipper to MLflow. Median "
        f"wall time of {found.median_ms:.1f} ms: {found.wall:.3f} of that without (1.01 is asked "
        f"on an idle machine). Longest append: {found.worst_append_ms:.1f} ms. `watch` takes "
        f"{found.start_ms:.0f} ms longer."
    )
    headline = ("processor time of a step with a shipper to MLflow", f"{found.cpu:.3f}", "1.01")
    publish("Sending to MLflow: step", "scripts/bench ship cost", body, [headline])


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ship")
    parser.add_argument("part", choices=("faults", "cost"))
    parser.add_argument("--steps", type=int, default=1000, help="steps of 20 points each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the database runs as a different user
        root = Path(folder)
        if arguments.part == "cost":
            publish_cost(root / "cost")
            return
        rows = [part(root / part.__name__, arguments.steps) for part in (killing, proxy)]
    publish("Sending to MLflow: faults", "scripts/bench ship faults", SERVERS, rows)


def _arrived(outcome: Outcome) -> str:
    rows = f"{outcome.rows:,} rows, {outcome.distinct:,} distinct"
    return f"{rows}, {outcome.marked} marks, {outcome.runs} run, in {outcome.seconds:.0f} s"


def _wanted(outcome: Outcome) -> str:
    return f"{outcome.points:,} points, each once, {outcome.marks} marks, 1 run"


if __name__ == "__main__":
    main()
