"""The sinks that need a package, with the real one; CI installs them for this file alone."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.alerts.test_channels import an_alert
from tests.integrations.runs import open_incident, ship, wait_until
from tests.kit.servers import Receiver, serving

from trimtab.integrations.alerts.channels import read_channels
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.observe.shipping.cursor import Cursor

pytestmark = pytest.mark.filterwarnings("default")  # other people's warnings are no errors here


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.observe.shipping.shipper.POSTMORTEM_SECONDS", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))


def write(run: RunDirectory) -> None:
    """Ten steps, back to step 5, and on to step 12."""
    run.write_manifest({"model": "GPT", "world": 2})
    with JournalWriter(run) as journal:
        for tick, step in enumerate([*range(10), *range(5, 12)]):
            loss = math.nan if tick == 3 else 3.0
            values = {"loss": loss, "clock": 1.7e9 + tick}
            journal.append(step, values, attempt=int(tick >= 10))
        open_incident(journal, 11)


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    """The rows of the one offline run in a folder, by trimtab's own reader of W&B files."""
    from trimtab.readers.reading import read_log

    (file,) = folder.rglob("run-*.wandb")
    wait_until(lambda: file.stat().st_size > 100)  # wandb-core writes it after the run is finished
    block = read_log(file).block
    return [
        {name: float(c.values[row]) for name, c in block.columns.items() if c.present[row]}
        | {"step": int(block.step[row])}
        for row in range(len(block))
    ]


def test_wandb_has_every_point_of_both_attempts_and_resends_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="pip install -e '.[wandb]'")
    from trimtab.integrations.sinks.wandb_sink import WandbSink

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_RUN_ID", "the-users-run")
    run = RunDirectory(tmp_path / "x1")
    write(run)

    class Resending(WandbSink):
        def send(self, block: Any) -> None:
            super().send(block)
            super().send(block)

    assert ship(run, Resending())
    rows = wandb_history(run.home / "ship")
    assert [row["step"] for row in rows] == [*range(10), *range(5, 12)]
    assert len([row for row in rows if "trimtab/loss" in row or "loss" in row]) == 17
    assert Cursor(run, "wandb").memory.values["run_id"] != "the-users-run"


def test_apprise_sends_an_alert_and_a_missing_service_is_an_error() -> None:
    pytest.importorskip("apprise", reason="pip install -e '.[apprise]'")
    with serving(receiver := Receiver()):
        url = receiver.url.replace("http://", "apprise:json://")
        (channel,) = read_channels({"TRIMTAB_ALERT_URLS": f"{url}/a"})
        channel.send(an_alert(text="@everyone, <!channel>: Class: divergent."), 20)
        receiver.behaviour = "500"
        with pytest.raises(ConnectionError, match=r"apprise could not send it: .*500"):
            channel.send(an_alert(), 20)
    sent = receiver.posted[0][1]
    assert sent["title"] == "x1: incident 3: loss spike at step 900"
    # Nobody is mentioned by text from a run.
    assert sent["message"].startswith("@\u200beveryone, <!\u200bchannel>: Class: divergent.\n")
    assert sent["message"].endswith("https://tracker/run")
    from trimtab.core.errors import ConfigError

    with pytest.raises(ConfigError, match="does not know the service"):
        read_channels({"TRIMTAB_ALERT_URLS": "apprise:nonsense://a"})


def test_a_missing_package_names_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from trimtab.core.errors import MissingExtra
    from trimtab.observe.shipping.shipper import find_sink

    for name in ("wandb", "apprise"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[wandb\]"'):
        find_sink("wandb")
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[apprise\]"'):
        read_channels({"TRIMTAB_ALERT_URLS": "apprise:json://host"})
