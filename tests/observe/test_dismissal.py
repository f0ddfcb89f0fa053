"""A dismissed incident is shown as such wherever the run is shown, and counts nowhere as open."""

import getpass
import io
import json
from pathlib import Path

from rich.console import Console, RenderableType
from tests.cli.test_commands import write_run
from tests.integrations.runs import KeepingSink, ship
from tests.kit.synthetic import add_spike, block_of, falling_loss
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.diagnosis import diagnose
from trimtab.integrations.alerts.alert import AlertState, RunAlerts
from trimtab.integrations.incident_news import IncidentNews
from trimtab.journal import RunDirectory, add_note
from trimtab.journal.news import INCIDENT, read_news
from trimtab.observe.observed_run import ObservedRun
from trimtab.observe.run_stream import RunStream
from trimtab.observe.server.hub import Hub
from trimtab.observe.server.run_feed import is_open
from trimtab.report.pages.run_page import dashboard_page
from trimtab.report.terminal import LiveView, report_view

WHY = "a known hard batch"
SAID = f"dismissed by {getpass.getuser()}: {WHY}"


def shown(view: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(view)
    return console.export_text()


def test_every_output_says_who_dismissed_an_incident_and_counts_it_as_open_nowhere(
    tmp_path: Path,
) -> None:
    root = write_run(block_of({"loss": add_spike(falling_loss(400), 390)}), tmp_path / "x1")
    run, runner = RunDirectory(root), CliRunner()
    observed = ObservedRun(run)
    assert observed.poll()
    before = diagnose(root)
    assert len(before.incidents) == 1
    assert runner.invoke(app, ["diagnose", str(root)]).exit_code == 1
    missing = runner.invoke(app, ["note", str(root), WHY, "--dismiss", "9"])
    assert (missing.exit_code, "has no incident 9; it has: 1" in missing.output) == (2, True)
    assert runner.invoke(app, ["note", str(root), WHY, "--dismiss", "1"]).exit_code == 0
    assert observed.poll(), "the notes have grown"

    # The files of the run, and what the observer says.
    dismissed = [e for e in read_news(run) if e.facts.get("transition") == "dismissed"]
    assert [(e.facts["number"], e.facts["text"]) for e in dismissed] == [(1, WHY)]
    (postmortem,) = root.rglob("postmortem.md")
    assert SAID in postmortem.read_text()
    written = json.loads((run.home / "verdict.json").read_text())
    assert written["incidents"][0]["dismissed"] == getpass.getuser()
    assert written["verdict"].endswith("; 1 dismissed.")

    # A report.
    report = diagnose(root)
    assert report.verdict == "Nothing to do; 1 dismissed."
    assert report.tone == "good"
    assert report.to_dict()["incidents"][0]["dismissed_because"] == WHY
    assert SAID in shown(report_view(report, 200))
    assert SAID in dashboard_page(report)
    assert SAID in report.to_markdown()
    assert runner.invoke(app, ["diagnose", str(root)]).exit_code == 0

    # A live view, the fleet and its lines.
    stream = RunStream(run)
    view = LiveView("x1", stream.totals)
    view.update(stream.poll())
    assert SAID in shown(view.draw(200))
    assert not is_open(stream.totals.incidents[1])
    hub = Hub([tmp_path])
    hub.poll()
    (row,) = hub.fleet_since(-1)["rows"]
    assert (row["state"], row["open"], row["incidents"]) == ("ended", 0, 1)
    hub.close()
    stream.close()

    # What is sent.
    sink = KeepingSink()
    assert ship(run, sink)
    assert [facts["text"] for kind, facts in sink.events if "dismissed" in facts] == [WHY]
    news = tuple(event for event in read_news(run) if event.kind == INCIDENT)
    alerts = RunAlerts("x1", "", {})
    sent = [alert for event in news for alert in alerts.from_event(event)]
    assert sent[-1].state is AlertState.CLOSED
    assert SAID in sent[-1].title
    told = IncidentNews.from_event(dismissed[0])
    assert told is not None
    assert told.describe() == SAID


def test_a_dismissal_of_an_incident_that_there_is_not_is_a_note_and_nothing_else(
    tmp_path: Path,
) -> None:
    root = write_run(block_of({"loss": falling_loss(400)}), tmp_path / "x1")
    add_note(RunDirectory(root), WHY, dismiss=7)
    observed = ObservedRun(RunDirectory(root))
    observed.poll()
    assert not [e for e in read_news(RunDirectory(root)) if e.kind == "incident"]
    assert diagnose(root).verdict == "Healthy: no incident in 400 records."
