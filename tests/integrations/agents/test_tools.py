"""The tools for agents, without a protocol: what they answer, and what they can never reach."""

import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_commands import write_run
from tests.integrations.agents.hostile import ORDER, make_places
from tests.kit.printed_json import validate
from tests.kit.synthetic import falling_loss, troubled_run

from trimtab.core.errors import ConfigError
from trimtab.diagnosis import diagnose
from trimtab.integrations.agents.answers import MAX_BYTES, answer_text
from trimtab.integrations.agents.folders import AllowedFolders
from trimtab.integrations.agents.tools import MAX_NOTES, RunTools
from trimtab.journal import RunDirectory
from trimtab.journal.notes import read_notes


@pytest.fixture
def tools(tmp_path: Path) -> RunTools:
    write_run(troubled_run(), tmp_path / "runs" / "x1")
    rows = "".join(f"{at},{loss}\n" for at, loss in enumerate(falling_loss(500)))
    (tmp_path / "runs" / "log.csv").write_text("step,loss\n" + rows)
    return RunTools(AllowedFolders([tmp_path / "runs"]))


def read(text: str) -> dict[str, Any]:
    assert len(text) <= MAX_BYTES
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_verdict_is_the_brief_of_the_report(tools: RunTools, tmp_path: Path) -> None:
    answer = read(tools.verdict("x1"))
    untrusted = answer.pop("untrusted")
    assert untrusted == ["verdict", "incident"]
    validate("brief", {"schema": "trimtab brief 4", **answer})
    brief = diagnose(tmp_path / "runs" / "x1").brief(status="ended")
    assert answer == brief
    assert answer["act"] == "stop"


def test_nothing_new_is_small(tools: RunTools) -> None:
    token = read(tools.verdict("x1"))["token"]
    text = tools.changes("x1", token)
    assert read(text)["new"] == []
    assert len(text) < 300


def test_an_incident_is_explained_and_its_postmortem_is_whole(tools: RunTools) -> None:
    answer = read(tools.incident("x1", 2))
    assert answer["class"] == "dead"
    assert answer["found"]
    assert answer["root_cause"]
    first = tools.postmortem("x1", 2, 1)
    assert "never instructions" in first
    count = int(first.split("of ")[2].split(".")[0])
    parts = [tools.postmortem("x1", 2, part) for part in range(1, count + 1)]
    assert all(len(part.encode()) <= MAX_BYTES for part in parts)
    assert "Follow-ups" in parts[-1] or "Cost" in parts[-1]
    with pytest.raises(ConfigError, match="has"):
        tools.postmortem("x1", 2, count + 1)


def test_curves_have_few_points_and_keep_a_spike(tools: RunTools) -> None:
    names = read(tools.signals("x1"))["names"]
    assert "loss" in names
    loss = read(tools.signals("x1", names))["signals"]["loss"]
    assert len(loss["steps"]) == len(loss["values"]) <= 110
    peak = read(tools.incident("x1", 1))["loss"]["peak"]
    assert peak == pytest.approx(max(one for one in loss["values"] if one is not None), rel=1e-3)
    assert loss["not_finite"][0][0] == 900
    near = read(tools.signals("x1", ["loss"], "595:605"))["signals"]["loss"]
    assert near["steps"] == list(range(595, 606))
    assert read(tools.signals("x1", ["loss"], "5000:"))["records"] == 0


def test_two_runs_are_compared(tools: RunTools, tmp_path: Path) -> None:
    same = read(tools.compare("log.csv", "log.csv"))
    assert same["within"]
    rows = "".join(f"{at},{loss + (at > 300)}\n" for at, loss in enumerate(falling_loss(500)))
    (tmp_path / "runs" / "other.csv").write_text("step,loss\n" + rows)
    other = read(tools.compare("other.csv", "log.csv"))
    assert not other["within"]
    assert other["differences"][0]["step"] == 301


def test_a_config_is_checked(tools: RunTools, tmp_path: Path) -> None:
    (tmp_path / "runs" / "plan.toml").write_text(
        "[training]\noptimizer = 'adamw'\nlr = 0.5\nsteps = 1000\nepsilon = 0.01\n"
    )
    answer = read(tools.check("plan.toml"))
    assert answer["num_findings"] == len(answer["findings"]) > 0
    with pytest.raises(ConfigError) as error:
        tools.check("log.csv")
    assert "/tmp" not in str(error.value).replace(str(tmp_path), "")


def test_a_note_is_added_and_changes_nothing_else(tools: RunTools, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "x1")
    before = {path: path.read_bytes() for path in run.home.rglob("*") if path.is_file()}
    answer = read(tools.note("x1", "lower the rate\nat the next start"))
    assert answer == {"step": 1200}
    (note,) = read_notes(run)
    assert note.facts["text"] == "agent: lower the rate?at the next start"
    assert "dismiss" not in note.facts
    after = {path: path.read_bytes() for path in run.home.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} == {run.notes}
    for _ in range(MAX_NOTES - 1):
        tools.note("x1", "again")
    with pytest.raises(ConfigError, match="limit"):
        tools.note("x1", "again")


def test_runs_and_logs_are_listed(tools: RunTools, tmp_path: Path) -> None:
    answer = read(tools.runs())
    assert (answer["runs"], answer["logs"]) == (["x1"], ["log.csv"])
    for number in range(300):
        (tmp_path / "runs" / f"{number:03d}-{'x' * 100}.csv").touch()
    assert read(tools.runs())["num_logs"] == 301


def test_a_log_is_read_again_only_if_it_has_changed(tools: RunTools, tmp_path: Path) -> None:
    look = tools._look("log.csv").report
    assert tools._look("log.csv").report is look
    with (tmp_path / "runs" / "log.csv").open("a") as file:
        file.write("500,nan\n")
    assert tools._look("log.csv").report is not look


def test_an_answer_that_is_too_long_is_cut_and_says_so() -> None:
    answer = read(answer_text({"names": ["x" * 50] * 1000, "verdict": "fine"}))
    assert answer["cut"]
    assert answer["verdict"] == "fine"
    assert "error" in read(answer_text({"text": "x" * 10_000}))


def test_folders_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        AllowedFolders([])
    with pytest.raises(ConfigError, match="not a folder"):
        AllowedFolders([tmp_path / "none"])


# What must never happen

AUDIT = """
import json, os, sys
from pathlib import Path
from tests.integrations.agents.hostile import hostile_calls, make_places
from trimtab.core.errors import TrimtabError
from trimtab.integrations.agents.folders import AllowedFolders
from trimtab.integrations.agents.tools import RunTools

root = Path(sys.argv[1])
allowed, secret = make_places(root)
tools = RunTools(AllowedFolders([allowed]))
tools.verdict("order.csv")  # what is imported late is imported now
seen, is_on = [], True

def hook(event, args):
    if is_on and event in WATCHED:
        seen.append((event, [os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in args[:2]]))

WATCHED = {"open", "os.listdir", "os.scandir", "subprocess.Popen", "os.system", "os.exec",
           "os.posix_spawn", "os.fork", "socket.connect", "os.remove", "os.rename", "os.mkdir"}
sys.addaudithook(hook)
for name, arguments in hostile_calls(secret):
    try:
        getattr(tools, name)(**arguments)
    except (TrimtabError, TypeError, AttributeError, OverflowError):
        pass
is_on = False
print(json.dumps(seen))
"""


def test_nothing_outside_is_opened_and_nothing_is_run(tmp_path: Path) -> None:
    script = textwrap.dedent(AUDIT)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "place")],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    secret = str(tmp_path / "place" / "secret")
    assert seen
    for event, arguments in seen:
        assert event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove"), arguments
        path = Path(arguments[0])
        assert secret not in str(path.resolve() if path.is_absolute() else path), arguments
        if event in ("os.mkdir", "os.remove") and path.is_absolute():  # a copy of a log
            assert path.is_relative_to(tempfile.gettempdir()), arguments
            assert not path.is_relative_to(tmp_path), arguments
        assert not arguments[0].startswith(("/etc", "/dev", "/home")), arguments
    assert not list((tmp_path / "place").rglob("pwned"))


def test_text_of_a_log_is_named_as_such(tmp_path: Path) -> None:
    allowed, _ = make_places(tmp_path)
    tools = RunTools(AllowedFolders([allowed]))
    listed = read(tools.signals("order.csv"))
    assert any(ORDER[:20] in name for name in listed["names"])
    assert listed["untrusted"] == ["names"]
