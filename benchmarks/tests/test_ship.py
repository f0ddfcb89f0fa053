"""A real MLflow on a real PostgreSQL; `scripts/bench ship` does the same at length."""

import tempfile
from pathlib import Path

import pytest
from benchmarks.ship.killing import ship_while_killing
from benchmarks.ship.servers import NotInstalled, find_mlflow, find_postgres


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_server_database_and_shipper_are_killed_and_each_point_is_there_once() -> None:
    try:
        find_mlflow(), find_postgres()
    except NotInstalled as missing:
        pytest.skip(str(missing))
    # Not in pytest's folder, which only its owner may enter: the database has a user of its own.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        outcome = ship_while_killing(Path(name) / "a", steps=200, per_second=10, kills=1)
    assert (outcome.server_kills, outcome.database_kills, outcome.shipper_kills) == (1, 1, 2)
    assert outcome.rows == outcome.distinct == outcome.points
    assert outcome.marked == outcome.marks == 2
    assert outcome.runs == 1
