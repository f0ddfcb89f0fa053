"""Metrics for Prometheus: pulled on loopback, as a file, and by a real Prometheus."""

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.integrations.runs import append, open_incident, ship, wait_until
from tests.kit.observing import run_shipper

from trimtab.core.block import Block, Column
from trimtab.core.config import ShipConfig
from trimtab.core.errors import ConfigError
from trimtab.core.sink import RunStatus
from trimtab.integrations import sinks
from trimtab.integrations.sinks.prometheus_sink import PrometheusSink, RunMetrics
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper

FILES = Path(sinks.__file__).parent / "prometheus"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        return str(reply.read().decode())


def write(journal: JournalWriter, steps: int, clock: float = 1.7e9) -> None:
    for step in range(steps):
        append(journal, step, tokens=100.0, discarded=float(step == 3), clock=clock)
    append(journal, steps, loss=math.nan, clock=clock)
    open_incident(journal, 20)
    open_incident(journal, 21, transition="classified", incident_class="recovered")
    open_incident(journal, 22, transition="classified", incident_class="divergent")
    journal.event("undo", 22, updates_lost=12)


@contextmanager
def shipping(run: RunDirectory) -> Iterator[None]:
    """Ship a live run to Prometheus until the end of the block."""
    config = ShipConfig(stall_seconds=1e12)
    shipper = Shipper(run, [PrometheusSink()], config, ShipLog(run, None))
    thread = threading.Thread(target=run_shipper, args=(shipper, run, config.stall_seconds))
    thread.start()
    try:
        yield
    finally:
        shipper.stop()
        thread.join()


def test_the_text_has_every_family_and_counters_survive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, port = RunDirectory(tmp_path / 'x"1\\'), free_port()
    monkeypatch.setenv("TRIMTAB_PROMETHEUS_PORT", str(port))
    run.write_manifest({"model": "GPT", "mode": "observe", "world": 8, "trimtab": "0.2"})
    with JournalWriter(run) as journal:
        write(journal, 30)
        wait_until(lambda: any(run.journal.glob("*.log")))
        texts = []
        for _ in range(2):
            with shipping(run):
                wait_until(lambda: _answers(port))
                texts.append(scrape(port))
    assert texts[0] == texts[1]
    label = r'run="x\"1\\"'
    lines = texts[0].splitlines()
    assert f"trimtab_step{{{label}}} 30.0" in lines
    assert f"trimtab_loss{{{label}}} NaN" in lines
    assert f"trimtab_steps_total{{{label}}} 31.0" in lines
    assert f"trimtab_tokens_total{{{label}}} 3000.0" in lines
    assert f"trimtab_steps_discarded_total{{{label}}} 1.0" in lines
    assert f"trimtab_nonfinite_steps_total{{{label}}} 1.0" in lines
    assert f"trimtab_undos_total{{{label}}} 1.0" in lines
    assert f'trimtab_incidents_total{{{label},class="divergent"}} 1.0' in lines
    assert f'trimtab_incidents_total{{{label},class="silent"}} 0.0' in lines
    assert f"trimtab_incidents_open{{{label}}} 1.0" in lines
    assert any(
        line.startswith(f'trimtab_run_info{{{label},model="GPT",world="8"') for line in lines
    )


def _answers(port: int) -> bool:
    try:
        return "trimtab_step" in scrape(port)
    except OSError:
        return False


def test_the_textfile_goes_with_a_run_that_ended_and_stays_with_one_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_PROMETHEUS_PORT", "0")
    monkeypatch.setenv("TRIMTAB_PROMETHEUS_TEXTFILE", str(tmp_path / "textfiles"))
    run = RunDirectory(tmp_path / "x1")
    file = tmp_path / "textfiles" / "trimtab-x1.prom"
    with JournalWriter(run) as journal:
        append(journal, 0)
        wait_until(lambda: any(run.journal.glob("*.log")))
        with shipping(run):
            wait_until(file.exists)
            assert "trimtab_steps_total" in file.read_text()
        assert file.exists()
    sink = PrometheusSink()
    assert ship(run, sink)
    assert not file.exists()
    file.touch()
    sink.finish(RunStatus.DIED)
    assert file.exists()


def test_it_listens_on_loopback_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("TRIMTAB_PROMETHEUS_PORT", str(port))
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0)
        wait_until(lambda: any(run.journal.glob("*.log")))
        with shipping(run):
            wait_until(lambda: _answers(port))
            listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{port:04X} 00000000:0000 0A" in listening


def test_a_port_that_is_none_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in ("http", "70000", "0"):
        monkeypatch.setenv("TRIMTAB_PROMETHEUS_PORT", port)
        with pytest.raises(ConfigError):
            PrometheusSink()


def test_rules_and_dashboard_name_metrics_that_exist() -> None:

    ones = Column.complete(np.ones(1))
    columns = dict.fromkeys(("loss", "grad_norm", "lr", "clock"), ones)
    metrics = RunMetrics("x", {})
    metrics.update(Block.from_columns(columns, step=np.array([1])))
    exported = set(re.findall(r"# TYPE (\w+)", metrics.text()))
    rules = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    dashboard = json.loads((FILES / "grafana.json").read_text())
    assert len(rules) == 4
    assert len(dashboard["panels"]) == 8
    for text in ((FILES / "alerts.yml").read_text(), json.dumps(dashboard)):
        assert set(re.findall(r"trimtab_\w+", text)) <= exported


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus package")
def test_a_real_prometheus_scrapes_it_and_its_rules_fire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, own_port = free_port(), free_port()
    monkeypatch.setenv("TRIMTAB_PROMETHEUS_PORT", str(port))
    rules = (FILES / "alerts.yml").read_text()
    # The same rules on a clock that a test can wait for.
    for slow, fast in (("> 600", "> 5"), ("for: 5m", "for: 1s")):
        assert slow in rules
        rules = rules.replace(slow, fast)
    (tmp_path / "alerts.yml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [alerts.yml]\n"
        "scrape_configs:\n- job_name: trimtab\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    for command in (
        ["promtool", "check", "rules", str(FILES / "alerts.yml")],
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
    ):
        subprocess.run(command, check=True, capture_output=True)
    prometheus = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{own_port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    run = RunDirectory(tmp_path / "x1")
    try:
        with JournalWriter(run) as journal:
            append(journal, 0, clock=time.time())
            wait_until(lambda: any(run.journal.glob("*.log")))
            with shipping(run):
                wait_until(lambda: _answers(port))
                checked = subprocess.run(
                    ["promtool", "check", "metrics"],
                    input=scrape(port),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert checked.returncode == 0, checked.stdout + checked.stderr
                wait_until(lambda: _query(own_port, "trimtab_steps_total") == [1.0], 60)
                write(journal, 30, clock=time.time())
                wanted = {
                    "TrimtabRunStalled",
                    "TrimtabNonFinite",
                    "TrimtabIncidentOpen",
                    "TrimtabRolledBack",
                }
                wait_until(lambda: _firing(own_port) == wanted, 90)
                assert _query(own_port, "trimtab_loss != trimtab_loss")
    finally:
        prometheus.terminate()
        prometheus.wait()


def _get(port: int, path: str) -> dict[str, object]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=5) as reply:
        found: dict[str, object] = json.loads(reply.read())["data"]
    return found


def _query(port: int, query: str) -> list[float]:
    try:
        found = _get(port, "query?query=" + urllib.request.quote(query))  # type: ignore[attr-defined]
    except OSError:
        return []
    result = found["result"]
    assert isinstance(result, list)
    return [float(series["value"][1]) for series in result]


def _firing(port: int) -> set[str]:
    alerts = _get(port, "alerts")["alerts"]
    assert isinstance(alerts, list)
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
