"""What happens to a run is reported while it happens."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kit import forked
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import watching

from trimtab.core.incidents import Incident

BAD = 120

pytestmark = pytest.mark.usefixtures("with_observer")


def train(run_dir: Path, on_incident: Any = None, steps: int = 160) -> Any:
    with watching(run_dir, on_incident=on_incident) as run:
        for step, batch in enumerate(batches(steps)):
            loss = loss_of(run.model, batch)
            factor = 50.0 if BAD <= step < BAD + 6 else 1.0
            run.guard.record(loss=loss * factor, tokens=batch.numel())
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    return run.guard


def of_the_spike(incidents: Any) -> list[Incident]:
    # On a busy machine a slow step before it may have opened the incident.
    return [i for i in incidents if i.onset.step <= BAD <= i.last.step]


def test_an_incident_is_logged_in_one_line_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")
    guard = train(tmp_path)
    assert len(of_the_spike(guard.incidents)) == 1
    lines = [r for r in caplog.records if "incident " in r.getMessage()]
    assert any(line.levelno == logging.WARNING for line in lines)
    for word in ("opened", "loss spike", "do: "):
        assert any(word in line.getMessage() for line in lines)
    assert not any("\n" in line.getMessage() for line in lines)
    assert max(len(line.getMessage()) for line in lines) <= 120
    closing = [r.getMessage() for r in caplog.records if "ended (closed)" in r.getMessage()]
    assert len(closing) == 1
    assert "160 steps recorded" in closing[0]


def test_the_callback_runs_in_a_thread_of_its_own_and_may_fail(tmp_path: Path) -> None:
    seen: list[tuple[Incident, bool]] = []

    def slow_and_broken(incident: Incident) -> None:
        seen.append((incident, threading.current_thread() is threading.main_thread()))
        time.sleep(0.2)
        raise ConnectionError("the pager is down")

    guard = train(tmp_path, slow_and_broken)
    assert of_the_spike(incident for incident, _ in seen)
    assert not any(in_main for _, in_main in seen)
    assert len(of_the_spike(guard.incidents)) == 1


def test_a_healthy_run_logs_its_start_and_its_end_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")
    train(tmp_path, steps=60)
    said = [r.getMessage() for r in caplog.records if r.name == "trimtab"]
    said = [line for line in said if "seconds" not in line and "throughput" not in line]
    first, last = said
    assert first.startswith("trimtab observes AdamW (")
    assert str(tmp_path) in first
    assert last.startswith("trimtab: ended (closed): 60 steps recorded, 0 incidents")


SCRIPT = """
import sys, torch, trimtab
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with trimtab.watch(model, optimizer, run_dir=sys.argv[1]):
    pass
"""


def test_a_script_that_configures_no_logging_shows_that_the_run_is_watched(tmp_path: Path) -> None:
    done = forked.run("-c", SCRIPT, tmp_path)
    lines = done.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["trimtab", "observes"], ["trimtab:", "ended"]]
