"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimtab.cli.main import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    shown = re.search(r"\$ trimtab (diagnose [^\n]*)\n(.*?)```", README, re.DOTALL)
    assert shown
    result = CliRunner().invoke(app, shown[1].split())
    printed = result.stdout + result.stderr
    assert [line.rstrip() for line in printed.splitlines()] == [
        line.rstrip() for line in shown[2].splitlines()
    ]
    assert result.exit_code == 1


def test_the_library_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples")
    code = next(c for c in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Judge" in c)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "600 recoverable" in printed
    assert "900 divergent" in printed


def test_every_link_leads_somewhere() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
