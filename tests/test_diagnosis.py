"""`trimtab.diagnose`, with detectors and readers of users that work, fail or clash."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import trimtab
from tests.cli.test_commands import write_csv, write_run
from tests.kit.plugins import install_plugin
from tests.kit.synthetic import falling_loss, troubled_run
from trimtab.cli.main import app
from trimtab.core.block import Record
from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Finding, Severity
from trimtab.diagnosis import build_report, explain_incident
from trimtab.judge import Judge
from trimtab.report.incident_files import write_incident, write_incidents
from trimtab.rulesets import TEXTBOOK
from trimtab.source import read_run

WORKING = """
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity


class At200(Detector):
    name = "at-200"

    def update(self, row):
        if row.step != 200:
            return []
        return [
            Finding(
                detector=self.name, symptom="step 200", severity=Severity.ALARM,
                signal="loss", step=row.step, tick=row.tick, value=1.0,
            )
        ]
"""


class At300(Detector):
    name = "at-300"

    def update(self, record: Record) -> list[Finding]:
        if record.step != 300:
            return []
        return [
            Finding(
                detector=self.name,
                symptom="step 300",
                severity=Severity.ALARM,
                signal="loss",
                step=record.step,
                tick=record.tick,
                value=1.0,
            )
        ]


class Failing(Detector):
    name = "failing"

    def update(self, record: Record) -> list[Finding]:
        raise ZeroDivisionError("at every record")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_csv(troubled_run(), tmp_path / "run.csv")


def onsets(report: trimtab.RunReport) -> list[int]:
    return [found.incident.onset.step for found in report.incidents]


def test_a_log_is_diagnosed_in_one_call(log: Path) -> None:
    stages: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        assert 0 < done <= total
        stages.append(stage)

    report = trimtab.diagnose(log, progress=progress)
    assert (report.source, report.format, report.rules) == (str(log), "csv", "trimtab")
    assert onsets(report) == [600, 900]
    assert report.signals["loss"].label == "raw"
    spike = report.to_dict()["incidents"][0]
    assert spike["cause"] is None  # possible, but no token was recorded
    assert spike["hypotheses"][0]["cause"]["id"] == "F02"
    assert re.search(r"# Incident 2: loss [\d.]+ -> nan at step 900, dead", report.to_markdown())
    assert list(dict.fromkeys(stages)) == ["Reading", "Judging", "Explaining"]


def test_rules_come_from_the_argument_or_the_config(log: Path) -> None:
    textbook = Config.from_dict({"rule_set": "textbook"})
    assert trimtab.diagnose(log, config=textbook).rules == "textbook"
    assert trimtab.diagnose(log, config=textbook, rules="trimtab").rules == "trimtab"
    assert trimtab.diagnose(log, rules=TEXTBOOK).rules == "textbook"
    with pytest.raises(ConfigError, match="choose from trimtab, textbook"):
        trimtab.diagnose(log, rules="folklore")


def test_a_clean_run_has_a_short_document(tmp_path: Path) -> None:
    log = write_csv(troubled_run()[:500], tmp_path / "run.csv")
    assert trimtab.diagnose(log).to_markdown() == "Healthy: no incident in 500 records.\n"


def test_a_detector_that_is_passed_runs_beside_ours(log: Path) -> None:
    report = trimtab.diagnose(log, detectors=[At300()])
    assert onsets(report) == [300, 600, 900]
    (finding,) = report.incidents[0].incident.findings
    assert report.package_of(finding) == At300.__module__


@pytest.mark.parametrize(
    ("detectors", "message"),
    [
        ([At300(), At300()], "there is a detector 'at-300' already"),
        (["loss"], "'loss' is not a trimtab.core.detector.Detector"),
    ],
)
def test_a_detector_that_cannot_be_used_is_an_error(
    log: Path, detectors: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trimtab.diagnose(log, detectors=detectors)


def test_a_detector_that_raises_is_left_out_and_judging_goes_on(log: Path) -> None:
    report = trimtab.diagnose(log, detectors=[Failing()])
    assert onsets(report) == [600, 900]
    (failure,) = report.failures
    assert "failing" in failure
    assert "ZeroDivisionError: at every record" in failure
    assert failure in report.notes


@pytest.mark.parametrize(
    ("source", "attribute", "reason"),
    [
        ("import no_such_module\n", "X", "No module named 'no_such_module'"),
        ("def X(): raise OSError('no license')\n", "X", "OSError: no license"),
        ("X = int\n", "X", "it lacks the base class trimtab.core.detector.Detector"),
        (WORKING.replace("at-200", "throughput"), "At200", "a detector 'throughput' already"),
        (WORKING.replace("if row.step", "if row.no_such"), "At200", "AttributeError"),
    ],
)
def test_a_plugin_that_fails_is_one_line_in_the_report_and_on_stderr(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    attribute: str,
    reason: str,
) -> None:
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "broken", source, attribute)
    result = CliRunner().invoke(app, ["diagnose", str(log), "--json"])
    printed = json.loads(result.stdout)
    assert len(printed["incidents"]) == 2
    (line,) = result.stderr.splitlines()
    assert reason in line
    assert line.removeprefix("trimtab: ") in printed["notes"]


def test_a_plugin_shows_in_the_terminal_the_json_and_the_postmortem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "at200", WORKING, "At200")
    root = write_run(troubled_run(), tmp_path / "x1")
    runner = CliRunner(env={"COLUMNS": "120"})
    shown = runner.invoke(app, ["diagnose", str(root), "--write"]).stdout
    assert "by at-200 (at200-package 1.2)" in shown
    printed = json.loads(runner.invoke(app, ["diagnose", str(root), "--json"]).stdout)
    assert printed["packages"]["at-200"] == "at200-package 1.2"
    first = printed["incidents"][0]["incident"]["findings"][0]
    assert (first["detector"], first["package"]) == ("at-200", "at200-package 1.2")
    postmortem = root / "trimtab" / "incidents" / "0001-step-000200" / "postmortem.md"
    assert "at-200 (at200-package 1.2)" in postmortem.read_text()


@pytest.mark.parametrize("page", ["extending", "settings"])
def test_the_code_in_the_docs_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root / "examples")
    text = (root / "docs" / f"{page}.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    if page == "extending":
        text = text.split("\n## A detector\n")[1].split("\n## ")[0]
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, f"{page}.md", "exec"), names)
    if page == "settings":
        assert onsets(names["report"]) == [600, 900]
    else:
        detector = names["RewardCollapse"]()
        rewards = [0.1, 0.5, 0.4, 0.09]
        rows = [Record(step, step, {"reward": r}) for step, r in enumerate(rewards)]
        assert [len(detector.update(row)) for row in rows] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("length", "more", "is_flat"),
    [(3000, "", True), (900, "", False), (3000, ",reward", False), (300, "", False)],
)
def test_a_healthy_run_that_no_longer_learns_says_so(
    length: int, more: str, is_flat: bool, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    values = falling_loss(length)
    rows = [f"{step},{value}{',1.0' * bool(more)}" for step, value in enumerate(values)]
    log.write_text("\n".join([f"step,loss{more}", *rows]))
    report = trimtab.diagnose(log)
    assert not report.incidents
    assert any("hardly fallen" in note for note in report.notes) == is_flat


def test_one_incident_is_explained_and_written_as_all_are(log: Path, tmp_path: Path) -> None:
    run, judge = read_run(log), Judge()
    judge.update(run.block)
    judge.finish()
    report = build_report(judge, run, name=str(log))
    first, *others = report.incidents
    assert others
    assert explain_incident(judge, run, first.incident).to_dict() == first.to_dict()
    write_incidents(report, tmp_path / "all")
    write_incident(tmp_path / "one", first, report)
    (folder,) = (tmp_path / "one").iterdir()
    for file in folder.iterdir():
        assert file.read_bytes() == (tmp_path / "all" / folder.name / file.name).read_bytes()


def test_an_incident_that_is_written_again_leaves_the_others_alone(
    log: Path, tmp_path: Path
) -> None:
    report = trimtab.diagnose(log)
    first, second = (path.parent for path in write_incidents(report, tmp_path)[:2])
    (first / "batch.json").write_text("kept by the guard", encoding="utf-8")
    (first / "postmortem.md").unlink()
    (second / "postmortem.md").unlink()
    assert write_incident(tmp_path, report.incidents[0], report) == first / "postmortem.md"
    assert (first / "postmortem.md").exists()
    assert (first / "batch.json").exists()
    assert not (second / "postmortem.md").exists()
