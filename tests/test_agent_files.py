"""What agents read: every command in it is run as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.synthetic import falling_loss, troubled_run
from trimtab.cli.main import app
from trimtab.integrations.agents.tools import RunTools
from trimtab.journal import JournalWriter, RunDirectory

ROOT = Path(__file__).parents[1]
SKILL = ROOT / "skills" / "trimtab" / "SKILL.md"
AGENTS = ROOT / "AGENTS.md"


def commands(page: Path) -> list[str]:
    """The lines of the shell blocks of a page."""
    found = re.findall(r"(?ms)^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"))
    return [line for block in found for line in block.splitlines() if line.strip()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the files that the skill names."""
    for name in ("train.log", "new.csv"):
        rows = "".join(f"{at},{loss}\n" for at, loss in enumerate(falling_loss(600)))
        (tmp_path / name).write_text("step,loss\n" + rows)
    (tmp_path / "config.toml").write_text(
        "[training]\noptimizer = 'adamw'\nlr = 3e-4\nsteps = 1000\n"
    )
    block, run = troubled_run(), RunDirectory(tmp_path / "runs" / "x1")
    run.write_manifest({"seed": 7})
    with JournalWriter(run) as journal:
        for row in range(len(block)):
            journal.append(step=int(block.step[row]), signals={"loss": 1.0})
    return tmp_path


def test_the_commands_of_the_skill_work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    lines = commands(SKILL)
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "trimtab"
        done = CliRunner().invoke(app, words)
        assert done.exit_code in (0, 1, 4), (line, done.output)


def test_the_skill_names_every_tool_and_no_other_command() -> None:
    text = SKILL.read_text(encoding="utf-8")
    tools = {name for name in vars(RunTools) if not name.startswith("_")} - {"postmortem"}
    listed = text.split("use its tools ")[1].split(": the same")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == tools
    in_tables = {line.split()[1] for line in re.findall(r"`(trimtab [^`]*)`", text)}
    assert in_tables <= {"diagnose", "check", "compare", "checkpoints", "mcp", "note"}


def test_the_skill_begins_as_skills_do() -> None:
    head = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", SKILL.read_text("utf-8"))
    assert head
    assert head[1] == SKILL.parent.name
    assert len(head[2]) <= 1024


@pytest.mark.slow
def test_the_commands_for_this_repository_work() -> None:
    lines = commands(AGENTS)
    assert lines.pop(0).startswith("pip install --editable")  # it is how these tests were set up
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(
            line, shell=True, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
        )
        assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-2000:])


def test_the_scripts_and_folders_that_are_named_exist() -> None:
    text = AGENTS.read_text(encoding="utf-8")
    scripts = set(re.findall(r"`(scripts/\w+)", text))
    assert scripts
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK), script
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    for folder in re.findall(r"`((?:src|tests|benchmarks|docs)/?[\w/]*)`", text):
        assert (ROOT / folder).exists(), folder
