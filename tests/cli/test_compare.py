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
    code, text = compare(run, base, "--within", 0.05, "--window", ":500")
    assert code == 0
    assert text.splitlines()[-4:] == [
        "500 common steps, 1 to 500; trailing means over 50 records",
        "loss differs by 0 on average, by 0 at most (step 50)",
        "first difference: none, all common signals are equal",
        "within 0.05",
    ]


def test_runs_that_part(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv", shift_from=300), write(tmp_path / "b.csv")
    code, text = compare(run, base, "--window", ":500")
    assert code == 1
    assert (
        "NOT within 0.05: exceeded at 199 steps, from step 302 on at all of them; "
        "at the end RUN is 1 above BASE"
    ) in text
    code, text = compare(base, run, "--window", ":500")
    assert "RUN is 1 below BASE" in text
    assert compare(run, base, "--window", ":299")[0] == 0


def test_two_values_are_shown_with_the_digits_that_differ(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv"), write(tmp_path / "b.csv")
    base.write_text(base.read_text().replace("2,3.996\n", "2,3.9960000000000004\n"))
    _, text = compare(run, base)
    assert "first difference: loss at step 2 (3.996, BASE 3.9960000000000004: a rounding)" in text


def test_a_run_directory_and_a_log(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    directory = RunDirectory(tmp_path / "run")
    directory.write_manifest({})
    with JournalWriter(directory) as journal:
        for step in range(1, 401):
            journal.append(step=step, signals={"loss": 4.0 - step / 500})
    code, text = compare(tmp_path / "run", base, "--window", ":500")
    assert code == 0
    assert "journal, 400 records" in text
    assert "note: the common steps end at 400, before step 500" in text


def test_json_is_for_machines(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv", shift_from=300), write(tmp_path / "b.csv")
    code, text = compare(run, base, "--json", "--window", ":500")
    (printed,) = json.loads(text)["comparisons"]
    assert code == 1
    assert printed["within"] is False
    assert printed["parted_at"] == 302
    assert (printed["num_common"], printed["window"], printed["last"]) == (500, 50, 500)
    assert printed["differences"][0]["step"] == 300
    assert printed["worst"] == pytest.approx(1.0)
    assert printed["notes"] == {"run": [], "base": []}


def test_a_nan_in_one_run_alone(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    run = tmp_path / "a.csv"
    run.write_text(base.read_text().replace("\n300,3.4\n", "\n300,nan\n"))
    code, text = compare(run, base)
    assert code == 1
    assert "at 1 step only one of the runs is finite, first at step 300" in text
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
    assert "note: loss of RUN is window-mean, that of BASE raw" in text


def test_what_cannot_be_compared_exits_3(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    other = write(tmp_path / "a.csv", steps=range(1000, 1010))
    code, text = compare(other, base)
    assert (code, text.count("\n")) == (3, 1)
    assert "no step in common" in text
    assert compare(tmp_path / "absent", base)[0] == 3
    code, text = compare(base, base, "--signal", "nope")
    assert (code, text) == (3, "trimtab: the first run has no 'nope'; it has loss\n")
    (tmp_path / "bare.csv").write_text("step,accuracy\n1,1\n")
    assert compare(base, tmp_path / "bare.csv")[0] == 3


def test_a_wrong_call_exits_2(tmp_path: Path) -> None:
    base = write(tmp_path / "b.csv")
    assert compare(base)[0] == 2
    assert compare(base, base, "--within", -1)[0] == 2
    assert compare(base, base, "--window", "soon")[0] == 2


def test_more_runs_are_compared_with_the_same_base(tmp_path: Path) -> None:
    run, base = write(tmp_path / "a.csv"), write(tmp_path / "b.csv")
    third = write(tmp_path / "c.csv", shift_from=300)
    page = tmp_path / "compare.html"
    code, text = compare(run, base, third, "--html", page)
    assert code == 1
    assert text.count("common steps, 1 to 600") == 2
    assert "from step 302 on at all of them" in text
    shown = page.read_text()
    assert "differs by over 0.05" in shown
    assert '"label":"c.csv"' in shown
    assert '"first":302' in shown
    code, text = compare(run, base, third, "--json")
    assert [one["within"] for one in json.loads(text)["comparisons"]] == [True, False]


def test_the_first_difference_names_signal_and_step(tmp_path: Path) -> None:
    base, run = tmp_path / "b.csv", tmp_path / "a.csv"
    rows = [f"{step},{4.0 - step / 500!r},3e-4" for step in range(1, 101)]
    base.write_text("\n".join(["step,loss,lr", *rows]) + "\n")
    rows[39] = rows[39].replace("3e-4", "6e-4")
    rows[40] = f"41,{4.5!r},3e-4"
    run.write_text("\n".join(["step,loss,lr", *rows]) + "\n")
    _, text = compare(run, base)
    assert (
        "first difference: lr at step 40 (0.0006, BASE 0.0003), "
        "loss at step 41 (4.5, BASE 3.918)" in text
    )


class TestChecks:
    def test_a_largest_value_in_a_window(self, tmp_path: Path) -> None:
        run = write(tmp_path / "a.csv")
        code, text = compare(run, "--max", 3.5, "--window", "300:400")
        assert (code, text) == (
            0,
            "ok    loss at most 3.5 from step 300 to 400: largest 3.4 at step 300\n",
        )
        code, text = compare(run, "--max", 3.3, "--window", "300:400")
        assert code == 1
        assert text.startswith("FAIL  loss at most 3.3 from step 300 to 400: 3.4 at step 300, and")

    def test_a_check_that_cannot_be_made_fails(self, tmp_path: Path) -> None:
        run = write(tmp_path / "a.csv")
        code, text = compare(run, "--signal", "grad_norm", "--max", 3)
        assert (code, text) == (1, "FAIL  grad_norm at most 3: no value is recorded there\n")

    def test_nan_is_beyond_every_limit(self, tmp_path: Path) -> None:
        run = write(tmp_path / "a.csv")
        run.write_text(run.read_text().replace("\n300,3.4\n", "\n300,nan\n"))
        code, text = compare(run, "--max", 10)
        assert (code, text) == (1, "FAIL  loss at most 10: nan at step 300\n")

    def test_a_mean_tells_a_level_from_noise(self, tmp_path: Path) -> None:
        run, file = write(tmp_path / "a.csv"), tmp_path / "verify.toml"
        start = "[[check]]\nfirst = 300\n"
        file.write_text(f"{start}last = 301\nmean_max = 3.3995\n\n{start}mean_max = 1\n")
        code, text = compare(run, "--verify", file)
        first, second = text.splitlines()
        assert code == 1
        assert first == "ok    loss on average at most 3.3995 from step 300 to 301: 3.399"
        assert second.startswith("FAIL  loss on average at most 1 from step 300: ")
        run.write_text(run.read_text().replace("\n300,3.4\n", "\n300,nan\n"))
        assert compare(run, "--verify", file)[1].startswith("FAIL")

    def test_a_file_of_checks(self, tmp_path: Path) -> None:
        run, base = write(tmp_path / "a.csv", shift_from=300), write(tmp_path / "b.csv")
        file = tmp_path / "verify.toml"
        file.write_text("[[check]]\nlast = 299\nwithin = 0.05\n\n[[check]]\nmax = 4.1\n")
        code, text = compare(run, base, "--verify", file)
        assert code == 1
        assert text.splitlines() == [
            "ok    loss within 0.05 of the base up to step 299: 0 on average, 0 at most",
            "FAIL  loss at most 4.1: 4.4 at step 300, and beyond it at 149 more steps",
        ]
        code, text = compare(run, "--verify", file, "--json")
        assert [one["passed"] for one in json.loads(text)["checks"]] == [False, False]

    @pytest.mark.parametrize(
        "text",
        [
            "max = 3",
            "[[check]]",
            "[[check]]\nmax = nan",
            "[[check]]\nmax = 1\nwithin = 1",
            "[[check]]\nmax = 1\nmean_max = 1",
            "[[check]]\nmax = 1\nfirst = 3.5",
            "[[check]]\nmax = 1\nshell = 'rm'",
            "not toml",
        ],
    )
    def test_a_file_that_is_wrong_is_a_usage_error(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "verify.toml"
        file.write_text(text)
        assert compare(write(tmp_path / "a.csv"), "--verify", file)[0] == 2
