"""Sinks by name: ours, an import path, a plug-in; and what the command says about them."""

import json
from pathlib import Path

import pytest
from tests.integrations.runs import append, ship, write_run
from tests.kit import forked
from tests.kit.plugins import install_plugin
from tests.kit.servers import Mlflow, serving
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.sink import Sink
from trimtab.journal import JournalWriter
from trimtab.observe.shipping.shipper import find_sink, shadowed

SOURCE = """
class Lines:
    name = "lines"
    needs_everything = False

    def begin(self, run, memory):
        self.file = run.home.parent / "lines.txt"

    def send(self, block):
        with self.file.open("a") as file:
            file.writelines(f"{step}\\n" for step in block.step)

    def poll(self): pass
    def finish(self, status): pass
    def close(self): pass
"""


def test_an_installed_sink_is_used_by_its_name_and_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, "trimtab.sinks", "lines", SOURCE, "Lines")
    for name in ("lines", "lines_plugin:Lines"):
        sink = find_sink(name)
        assert isinstance(sink, Sink)
        assert sink.name == "lines"
    help_text = CliRunner().invoke(app, ["observe", "--help"]).output
    assert "sink lines (lines-package 1.2)" in help_text


def test_the_sink_of_the_example_package_writes_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[3] / "examples" / "plugin" / "src"
    monkeypatch.syspath_prepend(str(examples))
    run = write_run(tmp_path)
    assert ship(run, find_sink("trimtab_example.json_lines:JsonLines"))
    file = tmp_path / "records.jsonl"
    with file.open("a") as torn:
        torn.write('{"step": 30, "lo')  # of a shipper that was killed
    with JournalWriter(run) as journal:
        append(journal, 30)
    assert ship(run, find_sink("trimtab_example.json_lines:JsonLines"))
    steps = [json.loads(line)["step"] for line in file.read_text().splitlines()]
    assert steps == list(range(31))


def test_ours_win_over_a_plug_in_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, "trimtab.sinks", "tensorboard", SOURCE, "Lines")
    assert find_sink("tensorboard").name == "tensorboard"
    assert shadowed() == ["tensorboard (tensorboard-package 1.2)"]


def test_the_command_ships_a_run_and_says_where_it_is(tmp_path: Path) -> None:
    import os

    run = write_run(tmp_path / "x1")
    with serving(server := Mlflow()):
        settings = {"MLFLOW_TRACKING_URI": server.url, "NO_PROXY": "127.0.0.1"}
        command = ("-m", "trimtab.cli", "observe", run.root, "--to", "mlflow")
        done = forked.run(*command, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    assert f"\nmlflow: 30 records sent; {server.url}/#/experiments/0/runs/" in done.stdout
    assert run.tracker_link() == done.stdout.split()[-1]
