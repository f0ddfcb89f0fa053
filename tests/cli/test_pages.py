"""The pages that commands write."""

import signal
import subprocess
import urllib.request
from pathlib import Path

from tests.cli.test_commands import write_csv, write_run
from tests.kit import forked
from tests.kit.synthetic import troubled_run
from typer.testing import CliRunner

from trimtab.cli.main import app

runner = CliRunner()


def test_write_puts_the_page_of_the_run_into_it_and_its_lessons_beside_it(tmp_path: Path) -> None:
    run = write_run(troubled_run(), tmp_path / "x1")
    result = runner.invoke(app, ["diagnose", str(run), "--write"])
    assert result.exit_code == 1
    text = (run / "trimtab" / "dashboard.html").read_text()
    assert 'href="incidents/0001-step-000600/postmortem.html"' in text
    assert (run / "trimtab" / "incidents" / "0001-step-000600" / "postmortem.html").exists()
    assert "(x1)" in (tmp_path / "LESSONS.md").read_text()


def test_any_log_gets_the_same_page(tmp_path: Path) -> None:
    log = write_csv(troubled_run(), tmp_path / "run.csv")
    page = tmp_path / "page.html"
    result = runner.invoke(app, ["diagnose", str(log), "--html", str(page)])
    assert result.exit_code == 1
    assert f"Page: {page}" in result.stderr
    assert 'id="incident-2"' in page.read_text()


def test_a_page_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    log = write_csv(troubled_run(), tmp_path / "run.csv")
    result = runner.invoke(app, ["diagnose", str(log), "--html", str(log / "page.html")])
    assert result.exit_code == 1
    assert "no page written" in result.stderr


def test_the_server_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_run(troubled_run(), tmp_path / "x1")
    command = ["-m", "trimtab.cli", "observe", str(tmp_path), "--web"]
    command += ["--address", "127.0.0.1:0"]
    with forked.Forked(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("1 runs at http://127.0.0.1:")
        address = line.split()[3]
        with urllib.request.urlopen(address) as answer:
            assert "2 incidents" in answer.read().decode()
        taken = address.split("/")[2]
        again = runner.invoke(app, ["observe", str(tmp_path), "--web", "--address", taken])
        assert again.exit_code == 2
        assert "cannot listen" in again.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
