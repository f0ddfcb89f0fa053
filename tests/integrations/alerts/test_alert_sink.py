"""Which messages are sent: one per matter, the worse and the end of it, a digest of many."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.alerts.test_channels import an_alert
from tests.integrations.runs import append, open_incident, say, ship, wait_until
from tests.kit import forked
from tests.kit.cases import some_of
from tests.kit.observing import run_shipper
from tests.kit.servers import Receiver, serving

from trimtab.core.block import Event
from trimtab.core.config import ShipConfig
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.integrations.alerts.alert import AlertLevel, AlertState, RunAlerts
from trimtab.integrations.alerts.alert_sink import AlertPolicy, AlertSink
from trimtab.integrations.alerts.channels import Outbox, read_channels
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.news import REPORT_WRITTEN
from trimtab.observe.run_observer import journal_size
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper

TOKEN = "T0K3N-xoxb-1234567890"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # These journals have no guard that writes post-mortems.
    monkeypatch.setattr("trimtab.observe.shipping.shipper.POSTMORTEM_SECONDS", 0.0)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A server that alerts are sent to."""
    with serving(made := Receiver()):
        monkeypatch.setenv("TRIMTAB_ALERT_URLS", f"webhook+{made.url}/{TOKEN}")
        yield made


def titles(receiver: Receiver) -> list[tuple[str, str]]:
    return [(body["state"], body["title"]) for _, body in receiver.posted]


def test_an_incident_opens_gets_worse_and_closes_with_its_cause(
    tmp_path: Path, receiver: Receiver
) -> None:
    run = RunDirectory(tmp_path / "x1")
    with JournalWriter(run) as journal:
        append(journal, 0)
        open_incident(journal, 20)
        open_incident(journal, 21, transition="worsened")  # no worse class: not a message
        rolls_back: dict[str, Any] = {"incident_class": "lingering", "onset": 20}
        rolls_back |= {"action": "Roll back to step-20.", "tone": "alarm", "checkpoint": "step-20"}
        open_incident(journal, 22, transition="classified", **rolls_back)
        open_incident(journal, 30, number=2, is_alarm=False)
        # Closed, it needs an act all the same.
        open_incident(journal, 35, transition="closed", **rolls_back)
        restored: dict[str, Any] = {"incident_class": "restored", "tone": "good", "onset": 20}
        open_incident(journal, 40, transition="closed", **restored)
        journal.event("undo", 41, updates_lost=12, why="head.weight not finite")
        journal.event("rollback proposed", 42, sentence="0.71 nat better; 48 updates lost")
    assert ship(run, AlertSink())
    assert titles(receiver) == [
        ("open", "x1: incident 1: loss spike at step 20"),
        ("changed", "x1: incident 1: loss spike at step 20"),
        ("closed", "x1: incident 1 closed: loss spike at step 20"),
        ("open", "x1: 12 updates were undone"),
        ("open", "x1: an older state is better"),
    ]
    assert "0.71 nat better; 48 updates lost" in receiver.posted[-1][1]["text"]
    assert "Likely cause: a hard batch\nDo: Wait." in receiver.posted[0][1]["text"]
    said = receiver.posted[1][1]
    assert (said["level"], said["facts"]["checkpoint"]) == ("error", "step-20")
    assert "Do: Roll back to step-20." in said["text"]


def test_ten_discarded_steps_in_a_row_are_an_alert_until_a_step_is_applied(
    tmp_path: Path, receiver: Receiver
) -> None:
    run = RunDirectory(tmp_path / "x1")

    def write(steps: range, discarded: range) -> None:
        with JournalWriter(run) as journal:
            for step in steps:
                append(journal, step)
                if step in discarded:
                    journal.event("step discarded", step, reasons=["loss not finite"])

    write(range(40), range(5, 14))  # nine: no message
    assert ship(run, AlertSink())
    assert not receiver.posted
    write(range(40, 52), range(45, 52))
    assert ship(run, AlertSink())
    write(range(52, 57), range(52, 57))  # the row goes on after a restart
    assert ship(run, AlertSink())
    assert [state for state, _ in titles(receiver)] == ["open"]
    write(range(57, 60), range(0))
    assert ship(run, AlertSink())
    assert titles(receiver) == [
        ("open", "x1: 10 steps in a row were discarded: the run does not train any more"),
        ("closed", "x1: steps are applied again"),
    ]
    assert receiver.posted[0][1]["text"] == "loss not finite"


@pytest.mark.parametrize(
    "behaviour", some_of(["500", "redirect", "silent", "dripping"], "redirect", "dripping")
)
def test_a_channel_that_fails_does_not_hold_the_other_and_no_secret_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    behaviour: str,
) -> None:
    monkeypatch.setattr("trimtab.integrations.alerts.channels.FIRST_WAIT", 0.1)
    monkeypatch.setattr("trimtab.integrations.alerts.channels.SEND_SECONDS", 0.5)
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0)
        open_incident(journal, 20)
        open_incident(journal, 40, transition="closed")
    with serving(bad := Receiver(behaviour)), serving(good := Receiver()):
        bad.elsewhere = f"{good.url}/stolen"
        addresses = f"webhook+{bad.url}/services/{TOKEN} webhook+{good.url}/{TOKEN}"
        monkeypatch.setenv("TRIMTAB_ALERT_URLS", addresses)
        shipper = Shipper(run, [AlertSink()], ShipConfig(), ShipLog(run, None))
        thread = threading.Thread(target=run_shipper, args=(shipper, run))
        thread.start()
        wait_until(lambda: len(good.posted) == 2 and len(bad.posted) >= 2)
        bad.behaviour = "ok"
        thread.join(60)
        assert shipper.shipments[0].is_complete
    assert [path for path, _ in good.posted] == [f"/{TOKEN}"] * 2
    log = (run.home / "ship" / "ship.log").read_text()
    assert log.count("webhook (address 1) cannot be reached") == 1
    assert "webhook (address 1) can be reached again" in log
    forked.run("-m", "trimtab.cli", "diagnose", tmp_path, "--write")
    assert (run.home / "dashboard.html").exists()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"T0K3N" not in written
    assert TOKEN not in caplog.text


def test_the_same_alert_is_not_sent_again_after_a_restart(
    tmp_path: Path, receiver: Receiver
) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0)
        open_incident(journal, 20)
    assert ship(run, AlertSink())
    with JournalWriter(run) as journal:
        append(journal, 1)
        open_incident(journal, 25, transition="worsened")
        open_incident(journal, 40, transition="closed")
    assert ship(run, AlertSink())
    assert [state for state, _ in titles(receiver)] == ["open", "closed"]


@pytest.mark.parametrize("is_old", [False, True])
def test_the_death_of_a_run_is_told_once_also_by_the_position_of_an_old_version(
    tmp_path: Path, receiver: Receiver, is_old: bool
) -> None:
    run = RunDirectory(tmp_path / "x1")
    with JournalWriter(run) as journal:
        append(journal, 0)
    for kind, facts in (
        (RUN_STATUS, {"status": "died", "how": "killed by SIGKILL"}),
        (REPORT_WRITTEN, {"bytes": journal_size(run)}),
    ):
        say(run, Event(kind=kind, tick=1, step=0, facts=facts))
    if is_old:  # it has no count of news
        (run.home / "ship").mkdir()
        position = {"schema": 1, "next_tick": 1, "num_events": 0, "num_records": 1}
        saved = json.dumps({**position, "num_refused": 0, "status": "died", "memory": {}})
        (run.home / "ship" / "alerts.json").write_text(saved)
    for _ in range(2):
        assert ship(run, AlertSink())
    told = [] if is_old else ["x1: the run died after step 0: its process is gone"]
    assert [title[: len(told[0])] for _, title in titles(receiver)] == told


def test_many_incidents_at_once_are_one_digest() -> None:
    state: dict[str, Any] = {}
    policy = AlertPolicy(state)
    sent = []
    for number in range(12):
        sent += policy.update(an_alert(matter=f"incident-{number}"), 1000.0 + number)
    assert len(sent) == 5
    assert not policy.digest("x1", 1020.0)
    (digest,) = AlertPolicy(state).digest("x1", 1080.0)
    assert digest.title == "7 more incidents opened in a short time"
    assert not policy.digest("x1", 1200.0)
    # The end of what was only in the digest is not a message.
    closed = AlertState.CLOSED
    assert not policy.update(an_alert(matter="incident-11", state=closed), 1300.0)
    assert policy.update(an_alert(matter="incident-0", state=closed), 1300.0)


def test_a_matter_is_repeated_after_ten_minutes_or_if_it_gets_worse() -> None:
    policy = AlertPolicy({})
    warning = an_alert(level=AlertLevel.WARNING, state=AlertState.CHANGED)
    assert policy.update(warning, 0.0)
    assert not policy.update(warning, 599.0)
    assert policy.update(warning, 600.0)
    assert policy.update(an_alert(level=AlertLevel.ERROR), 601.0)
    assert not policy.update(an_alert(level=AlertLevel.ERROR), 602.0)


@pytest.mark.parametrize(
    ("before", "now", "how", "expected"),
    [
        ("running", "died", None, [("died", "open")]),
        ("stalled", "died", None, [("died", "open")]),
        ("running", "stalled", None, [("stalled", "open")]),
        ("stalled", "running", None, [("stalled", "closed")]),
        ("died", "running", None, [("died", "closed")]),
        ("running", "ended", "closed", []),
        ("running", "ended", "raised NonFiniteRun", [("ended", "open")]),
    ],
)
def test_a_change_of_status_is_an_alert(
    before: str, now: str, how: str | None, expected: list[tuple[str, str]]
) -> None:
    facts = {"before": RunStatus(before), "status": RunStatus(now), "how": how}
    event = Event(kind=RUN_STATUS, tick=5, step=4, facts=facts)
    alerts = RunAlerts("x1", "", {}).from_event(event)
    assert [(alert.matter, alert.state.value) for alert in alerts] == expected


def test_an_old_message_that_cannot_be_sent_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    (channel,) = read_channels({"TRIMTAB_ALERT_URLS": "webhook+http://127.0.0.1:9/a"})
    outbox = Outbox(channel, [], reports.append)
    outbox.add(an_alert(clock=time.time() - 4000))
    outbox.add(an_alert(clock=time.time()))
    assert outbox.flush()
    assert not outbox.is_empty
    assert "a message of an hour ago is dropped" in reports[0]
