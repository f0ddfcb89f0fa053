"""MLflow's REST interface: each point once, whatever happens to replies, server and shipper."""

import contextlib
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integrations.runs import append, ship, shipping, wait_until, write_run
from tests.kit.servers import Mlflow, serving

from trimtab.core.config import ShipConfig
from trimtab.core.errors import ConfigError
from trimtab.integrations.sinks.mlflow_sink import MlflowSink
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.observe.shipping.cursor import Cursor
from trimtab.observe.shipping.transport import Reply


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mlflow]:
    """A server that the environment names."""
    for name in ("RUN_ID", "EXPERIMENT_ID", "EXPERIMENT_NAME", "TRACKING_TOKEN"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(made := Mlflow()):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", made.url)
        yield made


def test_a_run_has_its_metrics_parameters_incidents_and_post_mortems(
    tmp_path: Path, server: Mlflow
) -> None:
    run = write_run(tmp_path / "x1")
    assert ship(run, MlflowSink())
    made = server.only_run()
    assert made["status"] == "FINISHED"
    assert made["info"]["start_time"] == 1_700_000_000_000
    assert made["end_time"] == 1_700_000_002_900
    assert made["tags"]["mlflow.note.content"].startswith("Incidents:\n\n- step 20: loss spike")
    assert made["params"]["trimtab.model"] == "GPT"
    assert made["tags"]["trimtab.incidents"] == "1"
    assert made["tags"]["trimtab.incident.0001"] == ("step 20: loss spike; open; a hard batch")
    losses = {row for row in server.metrics if row[1] == "trimtab/loss"}
    assert len(losses) == 30
    assert (made["info"]["run_id"], "trimtab/loss", 1_700_000_000_700, 7, "2.9993") in losses
    (path,) = server.artifacts
    assert path.endswith("/artifacts/trimtab/0001-step-000020/postmortem.md")
    assert (
        Cursor(run, "mlflow")
        .memory.values["link"]
        .startswith(f"{server.url}/#/experiments/0/runs/")
    )


def test_progress_is_made_where_most_replies_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Mlflow
) -> None:
    monkeypatch.setattr("trimtab.observe.shipping.shipper.POLL_SECONDS", 0.001)
    monkeypatch.setattr("trimtab.observe.shipping.shipper.MAX_WAIT", 0.01)
    monkeypatch.setattr("trimtab.observe.shipping.shipper.MAX_LAST_WAIT", 0.01)
    more = {f"signal_{number}": 1.0 for number in range(20)}
    run = write_run(tmp_path, 500, **more)
    rng = random.Random(0)
    server.loses = lambda number: rng.random() < 0.6
    assert ship(run, MlflowSink(), config=ShipConfig(every=1))
    assert len(server.runs) == 1
    assert len(server.metrics) == 500 * (20 + 3)


def test_values_that_are_not_finite_are_left_out_and_marked(tmp_path: Path, server: Mlflow) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0, loss=math.inf)
        append(journal, 1, loss=math.nan)
        append(journal, 2)
    assert ship(run, MlflowSink())
    rows = {(key, step): value for _, key, _, step, value in server.metrics}
    assert [step for key, step in rows if key == "trimtab/loss"] == [2]
    assert rows["trimtab/nonfinite", 0] == rows["trimtab/nonfinite", 1] == "1.0"
    assert ("trimtab/nonfinite", 2) not in rows


def test_a_name_that_the_server_refuses_does_not_hold_the_rest(
    tmp_path: Path, server: Mlflow
) -> None:
    run = write_run(tmp_path, 30, **{"forbidden": 1.0, "a[b] %": 2.0})
    assert ship(run, MlflowSink(), config=ShipConfig(every=1))
    keys = {key for _, key, _, _, _ in server.metrics}
    assert "trimtab/a_b_ __1662f108" in keys
    assert "trimtab/forbidden" not in keys
    assert Cursor(run, "mlflow").num_refused == 30
    assert len([row for row in server.metrics if row[1] == "trimtab/loss"]) == 30


def test_a_resumed_run_goes_on_in_the_same_run_though_its_parameters_changed(
    tmp_path: Path, server: Mlflow
) -> None:
    run = write_run(tmp_path)
    assert ship(run, MlflowSink())
    run.write_manifest({"model": "GPT", "world": 4})
    with JournalWriter(run) as journal:
        append(journal, 30)
    assert ship(run, MlflowSink())
    assert server.only_run()["params"]["trimtab.world"] == "2"
    assert len([row for row in server.metrics if row[1] == "trimtab/loss"]) == 31


def test_the_users_own_run_gets_the_points_but_keeps_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Mlflow
) -> None:
    run = write_run(tmp_path)
    own = {"run_id": "own", "experiment_id": "3", "artifact_uri": "s3://bucket/own"}
    server.runs["own"] = {"info": own, "tags": {}, "params": {}, "status": "RUNNING"}
    monkeypatch.setenv("MLFLOW_RUN_ID", "own")
    assert ship(run, MlflowSink())
    made = server.only_run()
    assert made["status"] == "RUNNING"
    assert made["tags"]["trimtab.postmortems"].startswith("on the training machine: ")
    assert len(server.metrics) == 3 * 30
    assert not server.artifacts


@pytest.mark.parametrize("way", ["token", "user", "address"])
def test_credentials_reach_the_server_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Mlflow, way: str
) -> None:
    run = write_run(tmp_path)
    address = server.url
    if way == "token":
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "s3cret-token")
    elif way == "user":
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cret-token")
    else:
        address = address.replace("//", "//ada:s3cret-token@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert ship(run, MlflowSink())
    (header,) = server.authorization
    assert header == ("Bearer s3cret-token" if way == "token" else "Basic YWRhOnMzY3JldC10b2tlbg==")
    written = b"".join(path.read_bytes() for path in run.home.rglob("*") if path.is_file())
    assert b"s3cret" not in written


def test_an_expired_token_drops_nothing() -> None:
    for status in (401, 403, 404, 408, 429, 500, 503):
        with pytest.raises(ConnectionError):
            Reply(status=status, body=b"").require_success()


def test_an_address_that_is_no_server_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "sqlite:///mlflow.db", "databricks"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI must be"):
            MlflowSink()


def test_server_and_shipper_die_again_and_again_and_each_point_is_there_once(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path)
    server = Mlflow()
    port = server.server_address[1]
    settings = {"MLFLOW_TRACKING_URI": server.url, "NO_PROXY": "127.0.0.1"}
    with contextlib.ExitStack() as stack:
        shipper = stack.enter_context(shipping(run, "mlflow", environment=settings))
        with JournalWriter(run) as journal:
            for step in range(2000):
                append(journal, step)
                time.sleep(0.001)
                if step in (600, 1300):
                    with serving(server):
                        wait_until(lambda rows=server.metrics: len(rows) > 0, 90)  # type: ignore[misc]
                        shipper.kill()
                        shipper = stack.enter_context(shipping(run, "mlflow", environment=settings))
                        time.sleep(0.5)
                    # The server is closed in the middle of whatever it does, and comes back.
                    following = Mlflow(port)
                    following.runs, following.metrics = server.runs, server.metrics
                    server = following
        with serving(server):
            assert shipper.wait(60) == 0
    assert len(server.runs) == 1
    losses = [row for row in server.metrics if row[1] == "trimtab/loss"]
    assert len(losses) == 2000
    assert sorted(row[3] for row in losses) == list(range(2000))
