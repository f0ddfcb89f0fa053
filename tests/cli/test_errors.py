"""Usage errors say what is wrong, what was found, and what to do next; nothing is written."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.checks.plans import HEALTHY
from typer.testing import CliRunner

from trimtab.cli.main import app

OLD_RUN = Path(__file__).parents[1] / "journal" / "fixtures" / "v0.1"

# command, exit code, what and what was found, what to do next
ERRORS: list[tuple[str, int, str, str]] = [
    ("https://host/run.csv", 3, "https://host/run.csv", "download it, or pipe it"),
    ("diagnose no_loss.csv --since 3", 2, "--since", ""),
    ("diagnose absent", 3, "absent does not exist", "check the path"),
    ("diagnose junk.txt", 3, "begins with 'hello", "formats for --format"),
    ("diagnose program", 3, "looks like binary data", "lists what is read"),
    ("diagnose empty.csv", 3, "empty.csv is empty (0 bytes)", "check that the run logged"),
    ("diagnose no_loss.csv", 3, "columns: 'a', 'b'", "name it with --loss"),
    ("diagnose folder", 3, "0 files were checked", "give the log file itself"),
    ("diagnose no_loss.csv --format x", 2, "unknown log format 'x'", "choose from csv"),
    ("diagnose no_loss.csv --format cvs", 2, "'cvs'", "did you mean csv? choose from"),
    (
        "diagnose no_loss.csv --set x=1",
        2,
        "no setting 'x'",
        "one of rule_set, rules, live, gate",
    ),
    ("diagnose no_loss.csv --set theshold_scale=1", 2, "no setting", "'detect.threshold_scale'"),
    ("diagnose no_loss.csv --set detect.snapshot_ever=1", 2, "no", "'recover.snapshot_every'"),
    ("diagnose no_loss.csv --set detect=1", 2, "no setting 'detect'", ""),
    ("diagnose no_loss.csv --set threshold_scale=x", 2, "got 'x'", "must be a number"),
    ("diagnose no_loss.csv --set dtype=int3", 2, "unknown dtype 'int3'", "choose from fp32"),
    ("diagnose no_loss.csv --set x", 2, "got 'x'", "for example --set threshold_scale=2"),
    ("diagnose no_loss.csv --set threshold_scale=99", 2, "threshold_scale must be in 0.5..10", ""),
    ("diagnose no_loss.csv --config absent", 2, "absent does not exist", "check the path"),
    ("diagnose no_loss.csv --config junk.txt", 2, "cannot be read as TOML", "give a file with"),
    ("diagnose no_loss.csv --price cheap", 2, "'cheap' is not a number", ""),
    ("diagnose no_loss.csv --rules texbook", 2, "'texbook'", "did you mean 'textbook'?"),
    ("compare a b --within -1", 2, "it must be 0 or more, got -1", ""),
    ("run --max-relaunches x -- ls", 2, "'x' is not a whole number", ""),
    (f"note {OLD_RUN} ' '", 2, "the note is empty", "say what happened"),
    ("check absent", 3, "absent is not a file", "give a training config"),
    ("check", 2, "Missing argument", ""),
    ("check plan.json --off TT999", 2, "no rule TT999", ""),
    ("check plan.json --set lr", 2, "NAME=VALUE", ""),
    ("check plan.json --set lrr=3", 3, "lrr", "did you mean 'lr'"),
    ("check junk.txt", 3, "junk.txt has no known format", "give HF TrainingArguments"),
    ("compare no_loss.csv absent", 3, "no column is known", "name it with --loss"),
    ("diagnose absent --write", 3, "absent does not exist", "check the path"),
    ("diagnose folder --write", 3, "folder is not a run directory", "trimtab diagnose LOG"),
    ("note folder x", 3, "folder is not a run directory", "trimtab diagnose LOG"),
    ("observe absent", 3, "absent is not a folder", "give a run directory"),
    ("observe folder --once", 3, "no run is at or below folder", "check the path"),
    ("observe absent --web", 3, "absent is not a folder", "give a run directory"),
    ("observe folder --web --address x", 2, "HOST:PORT, got 'x'", "for example --address"),
    ("observe folder --web --json", 2, "--web shows pages", "leave out --json"),
    ("observe folder --once --to alerts", 2, "--once judges and sends nothing", "leave it out"),
    (
        f"observe {OLD_RUN} --to mlflwo",
        2,
        "there is no sink 'mlflwo'",
        "mlflow, wandb, tensorboard",
    ),
    (
        "observe folder --to slack",
        2,
        "there is no sink 'slack'",
        "'apprise:https://hooks.slack.com",
    ),
    ("observe folder --to email", 2, "there is no sink 'email'", "observe RUN --to alerts"),
    ("checkpoints list", 2, "Missing argument", ""),
    ("checkpoints folder", 3, "not a run directory with checkpoints", "give the run_dir"),
    (f"observe {OLD_RUN} --to mlflow", 2, "MLFLOW_TRACKING_URI must be", "start one with"),
    ("run -- no-such-command", 2, "'no-such-command' was not found", "check its name"),
    ("corpus scan absent --out s", 3, "absent does not exist", "check the path"),
    ("corpus scan junk.txt --out s", 3, "junk.txt is none of", "give files of these kinds"),
    ("corpus scan junk.txt --out s --shard 1", 2, "I/N, got '1'", "for example --shard 0/64"),
    ("corpus scan t.bin --out s --shard 0", 2, "got '0'", ""),
    ("corpus scan t.bin --out s --shard 2/2", 2, "shard must be 0 to 1, got 2", ""),
    ("corpus scan t.bin --out s --dtype float32", 2, "float32", ""),
    ("corpus scan t.bin --out s --vocab-size 0", 2, "vocab", ""),
    ("corpus scan t.bin --out s --separator -1", 2, "separator", ""),
    ("corpus scan t.bin --out s --shard 0/2 --processes 2", 2, "--shard", ""),
    ("corpus merge folder", 3, "folder holds no shards", "run `trimtab corpus scan` first"),
    ("corpus show folder", 3, "no merged result", "run `trimtab corpus merge` first"),
    ("corpus show junk.txt", 3, "not a readable result", "give the --out folder"),
]

WITH_TORCH = [
    ("selftest --device abacus", 2, "the device 'abacus' cannot be used here", ""),
    ("check x --lr-range", 2, "'x' is not module:function", "such as train:setup"),
    ("check x:f --set lr=1", 2, "--set is for configs", "change the objects"),
    ("check absent_module:f", 2, "no module 'absent_module'", "run the command in its folder"),
    ("check json:absent", 2, "'json' has no function 'absent'", "give module:function"),
    ("check json:dumps", 2, "cannot be called without arguments", "give a function that can"),
]

WITH_LAB = [
    ("lab run F99", 2, "unknown kind 'F99'", "did you mean F19 or F09?"),
    ("lab show folder", 3, "not a finished run of the lab", "give a folder that"),
    ("lab train r --set speed=1", 2, "there is no setting 'speed'", "choose from dtype"),
    ("lab train r --set measure=no", 2, "--set measure=no", "give true or false"),
    ("lab train r --set length=1.5", 2, "--set length=1.5", "as an integer"),
    ("lab train r --set dtype=int8", 2, "'int8' is not a valid Dtype", "--set dtype"),
    ("lab suite s --kinds F02,cooldwon", 2, "cooldwon", "did you mean cooldown?"),
    ("lab suite s --kinds f13W", 2, "f13W", "did you mean F13w"),
    ("lab suite s --kinds ?", 2, "unknown kind '?'", "`trimtab lab list`"),
    ("lab suite s --kinds ' , '", 2, "", "comma-separated list"),
    ("lab suite s --seeds 1,two", 2, "two", "whole numbers"),
    ("lab suite s --seeds -1", 2, "-1", "whole numbers"),
    ("lab suite s --fast --seeds 1", 2, "--fast", "leave out --kinds and --seeds"),
    ("lab practice --seed 1 --answer x", 2, "unknown answer 'x'", "choose from: wait"),
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "junk.txt").write_text("hello\n")
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x01\x00")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "no_loss.csv").write_text("a,b\n1,2\n")
    (tmp_path / "plan.json").write_text(json.dumps({"training": HEALTHY}))
    (tmp_path / "t.bin").write_bytes(bytes(8))
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(
    ("needed", "command", "code", "found", "next_step"),
    [
        *((None, *error) for error in ERRORS),
        *(("torch", *error) for error in WITH_TORCH),
        *(("tokenizers", *error) for error in WITH_LAB),
    ],
)
def test_an_error_says_what_was_found_and_what_to_do(
    needed: str | None, command: str, code: int, found: str, next_step: str
) -> None:
    if needed:
        pytest.importorskip(needed)
    before = {path.name for path in Path().iterdir()}
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, shlex.split(command))
    assert {path.name for path in Path().iterdir()} == before
    said = re.sub(r"[\s│]+", " ", result.stderr)
    assert result.exit_code == code, said
    assert found in said
    assert next_step in said
    assert "Traceback" not in said
    assert result.stdout == ""
