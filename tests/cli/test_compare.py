import json
from pathlib import Path

import pytest
from tests.readers.make_fixtures import FIXTURES
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.journal import JournalWriter, RunDirectory

runner = CliRunner()


def write(path: Path, shift_from: int | None = None, steps: range = range(1, 601)) -> Path:
    lines = ["step,loss"]
    for step in steps:
        loss = 4.0 - step / 500 + (1.0 if shift_from is not None and step >= shift_from else 0.0)
        lines.append(f"{step},{loss!r}")
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["compare", *map(str, arguments)])
    return result.exit_code, result.output


def test_runs_that_agree(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv"), write(tmp_path / "b.csv")
    code, text = compare(run, base, "--within", 0.05, "--until", 500)
    assert code == 0
    assert text.splitlines()[-3:] == [
        "500 common steps, 1 to 500; trailing means over 50 records",
        "loss differs by 0 on average, by 0 at most (step 50)",
        "within 0.05",
    ]


def test_runs_that_part(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv", shift_from=300), write(tmp_path / "b.csv")
    code, text = compare(run, base, "--until", 500)
    assert code == 1
    assert (
        "NOT within 0.05: the runs differ from step 302 on; at the end RUN is 1 above BASE" in text
    )
    code, text = compare(base, run, "--until", 500)
    assert "RUN is 1 below BASE" in text
    assert compare(run, base, "--until", 299)[0] == 0


def test_a_run_directory_and_a_log(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    directory = RunDirectory(tmp_path / "run")
    directory.write_manifest({})
    with JournalWriter(directory) as journal:
        for step in range(1, 401):
            journal.append(step=step, signals={"loss": 4.0 - step / 500})
    code, text = compare(tmp_path / "run", base, "--until", 500)
    assert code == 0
    assert "journal, 400 records" in text
    assert "note: the common steps end at 400, before step 500" in text


def test_json_is_for_machines(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv", shift_from=300), write(tmp_path / "b.csv")
    code, text = compare(run, base, "--json", "--until", 500)
    (printed,) = json.loads(text)["comparisons"]
    assert code == 1
    assert printed["within"] is False
    assert printed["parted_at"] == 302
    assert (printed["num_common"], printed["window"], printed["until"]) == (500, 50, 500)
    assert printed["worst"] == pytest.approx(1.0)
    assert printed["notes"] == {"run": [], "base": []}


def test_a_nan_in_one_run_alone(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    run = tmp_path / "a.csv"
    run.write_text(base.read_text().replace("\n300,3.4\n", "\n300,nan\n"))
    code, text = compare(run, base)
    assert code == 1
    assert "at 1 steps only one of the losses is finite, first at step 300" in text
    assert json.loads(compare(run, base, "--json")[1])["comparisons"][0]["broken_at"] == 300


def test_an_excursion_is_reported(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    run = tmp_path / "a.csv"
    run.write_text(base.read_text().replace("\n300,3.4\n", "\n300,8.4\n"))
    code, text = compare(run, base)
    assert code == 0
    assert "within 0.05 on average; exceeded at 50 steps, but not at the end" in text
    assert "NOT within 0.001: exceeded" in compare(run, base, "--within", 0.001)[1]


def test_a_mean_and_a_raw_loss_are_not_compared_in_silence(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv", steps=range(1, 13))
    _, text = compare(FIXTURES / "hf" / "every_2.json", base)
    assert "note: RUN has a window-mean loss, BASE a raw one" in text


def test_what_cannot_be_compared_exits_3(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    other = write(tmp_path / "a.csv", steps=range(1000, 1010))
    code, text = compare(other, base)
    assert (code, text.count("\n")) == (3, 1)
    assert "no step in common" in text
    assert compare(tmp_path / "absent", base)[0] == 3
    (tmp_path / "bare.csv").write_text("step,accuracy\n1,1\n")
    assert compare(base, tmp_path / "bare.csv")[0] == 3


def test_a_wrong_call_exits_2(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    assert compare(base)[0] == 2
    assert compare(base, base, "--within", -1)[0] == 2
    assert compare(base, base, "--until", "soon")[0] == 2


def test_more_runs_are_compared_with_the_same_base(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv"), write(tmp_path / "b.csv")
    third = write(tmp_path / "c.csv", shift_from=300)
    page = tmp_path / "compare.html"
    code, text = compare(run, base, third, "--html", page)
    assert code == 1
    assert text.count("common steps, 1 to 600") == 2
    assert "the runs differ from step 302 on" in text
    shown = page.read_text()
    assert "not within" in shown
    assert '"label":"c.csv"' in shown
    assert '"first":302' in shown
    code, text = compare(run, base, third, "--json")
    assert [one["within"] for one in json.loads(text)["comparisons"]] == [True, False]
