"""Journal and news together: each once, in order, whoever said it."""

from pathlib import Path
from typing import Any

import pytest
from tests.integrations.runs import append, open_incident, say
from tests.kit.synthetic import add_spike, falling_loss

from trimtab.core.block import Event
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.news import INCIDENT, REPORT_WRITTEN, read_news
from trimtab.journal.writer import JournalLimits
from trimtab.observe.observed_run import ObservedRun
from trimtab.observe.run_stream import RunStream
from trimtab.observe.server.hub import Hub

OLD_RUNS = Path(__file__).parents[1] / "old_runs"


def incident(tick: int, number: int = 1, **facts: Any) -> Event:
    given = {"transition": "opened", "number": number, "onset": tick, **facts}
    return Event(kind=INCIDENT, tick=tick, step=tick, facts=given)


def status(tick: int, name: str) -> Event:
    facts = {"status": name, "how": "closed"}
    return Event(kind=RUN_STATUS, tick=tick, step=tick - 1, facts=facts)


def standing_of(stream: RunStream) -> str:
    stream.poll()
    return stream.standing.status.value + ", written" * stream.is_written


def test_news_are_among_the_events_and_in_the_totals(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0)
    stream = RunStream(run)
    assert len(stream.poll()) == 1
    say(run, incident(1, symptoms=["loss spike"]))
    assert [event.kind for event in stream.poll().events] == [INCIDENT]
    say(run, incident(1, transition="dismissed", dismissed="ann", text="known"))
    say(run, incident(1, transition="closed"))
    assert len(stream.poll().events) == 2
    facts = stream.totals.incidents[1]
    assert (facts["symptoms"], facts["dismissed"], facts["transition"]) == (
        ["loss spike"],
        "ann",
        "closed",
    )
    assert not stream.poll().events
    stream.close()


def test_a_status_holds_until_the_run_goes_on(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run) as journal:
        append(journal, 0)
    stream = RunStream(run)
    assert standing_of(stream) == "running"
    assert stream.ended == "closed"
    say(run, status(1, "ended"))
    assert standing_of(stream) == "ended"
    say(run, Event(kind=REPORT_WRITTEN, tick=1, step=0))
    assert not stream.poll().events, "it is for those who wait for the files"
    assert standing_of(stream) == "ended, written"
    with JournalWriter(run) as journal:
        append(journal, 1)
    assert standing_of(stream) == "running"
    stream.close()


def test_what_the_journal_of_an_old_run_says_is_not_said_again(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with JournalWriter(run, JournalLimits(segment_records=10)) as journal:
        for step in range(40):
            append(journal, step)
            if step == 30:
                open_incident(journal, 30)
    for event in (incident(12, number=7), incident(31), incident(39, number=2)):
        say(run, event)
    for max_records in (None, 10):
        stream = RunStream(run)
        blocks = [stream.poll(max_records)]
        while stream.has_more:
            blocks.append(stream.poll(max_records))
        events = [event for block in blocks for event in block.events]
        assert [event.facts["number"] for event in events] == [1, 2]
        stream.close()


@pytest.mark.parametrize("name", ["0.1-last", "0.2-last"])
def test_old_runs_keep_their_incidents(name: str) -> None:
    stream = RunStream(RunDirectory(OLD_RUNS / name))
    stream.poll(None)
    assert stream.totals.num_records
    assert stream.standing.status is RunStatus.RUNNING
    stream.close()


def write_spike(run: RunDirectory, steps: int = 400) -> None:
    with JournalWriter(run) as journal:
        for step, loss in enumerate(add_spike(falling_loss(steps), steps - 10)):
            journal.append(step, {"loss": float(loss), "clock": 1e9 + step})


def test_a_run_that_was_written_is_not_judged_again_until_it_grows(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_spike(run)
    assert ObservedRun(run).poll()
    said = read_news(run)
    assert {event.kind for event in said} == {INCIDENT, RUN_STATUS, REPORT_WRITTEN}
    again = ObservedRun(run)
    assert again.poll(), "it is known how it stands"
    assert again.observer is None
    assert not again.poll()
    assert again.standing.status is RunStatus.ENDED
    assert read_news(run) == said
    with JournalWriter(run) as journal:
        journal.append(400, {"loss": 2.0, "clock": 1e9 + 400})
    assert again.poll()
    assert read_news(run)[-2].tick == 401


def test_many_runs_cost_no_open_file_once_they_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        write_spike(RunDirectory(tmp_path / f"x{number}"), 200)
    looks: list[str] = []
    clock = 1000.0
    monkeypatch.setattr("trimtab.observe.server.hub.time.monotonic", lambda: clock)
    runs = Hub([tmp_path], on_change=lambda feed: looks.append(feed.name))
    runs.poll()
    assert len(looks) == 12
    assert runs.is_over
    assert not any(feed.observed.observer for feed in runs.feeds.values())
    polled = 0
    for _ in range(240):  # a minute
        clock += 0.25
        polled += sum(feed.times.is_due(clock) for feed in runs.feeds.values())
        runs.poll()
    assert len(looks) == 12, "nothing has changed"
    assert polled < 12 * 20
    runs.close()
