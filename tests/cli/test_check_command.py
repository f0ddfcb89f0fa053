import json
from pathlib import Path

import pytest
from tests.checks.plans import HEALTHY
from typer.testing import CliRunner

from trimtab.checks.catalogue import PLAN_RULES
from trimtab.checks.config_file import FIELDS
from trimtab.cli.main import app

runner = CliRunner()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"training": HEALTHY}))
    return path


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps({**HEALTHY, "epsilon": 0.01, "clip_norm": 0.0}, indent=1))
    return path


def test_a_healthy_plan_exits_0(plan: Path) -> None:
    result = runner.invoke(app, ["check", str(plan)])
    assert result.exit_code == 0, result.output
    assert "Nothing found" in result.stdout.splitlines()[-1]


def test_findings_exit_1_worst_first_summary_last(spoilt: Path) -> None:
    result = runner.invoke(app, ["check", str(spoilt)], env={"COLUMNS": "100"})
    assert result.exit_code == 1
    text = result.stdout
    assert "TT0" not in text
    assert text.index("Adam's epsilon swamps") < text.index("Gradients are not clipped")
    assert 'line 11: "epsilon": 1e-08,' in text
    assert text.splitlines()[-1].startswith("1 error, 1 warning, 0 suggestions; ")
    assert "rollback: at worst 1,210 steps = 40 min = $672" in text


def test_json_is_for_machines(spoilt: Path) -> None:
    result = runner.invoke(app, ["check", str(spoilt), "--json", "--off", "tt002"])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert [finding["id"] for finding in printed["findings"]] == ["TT004"]
    assert printed["findings"][0]["fix"] == [{"text": '"epsilon": 1e-08,', "line": 11}]
    assert printed["off"] == ["TT002"]
    assert printed["plan"]["epsilon"] == 0.01
    assert printed["rollback"]["steps"] == 1210


def test_set_adds_what_the_config_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 1, "learning_rate": 0.01}')
    known = ["--set", "parameters=7e9", "--set", "norm=post", "--set", "layers=24", "--json"]
    found = json.loads(runner.invoke(app, ["check", str(path), *known]).stdout)
    assert {"TT012", "TT060"} <= {finding["id"] for finding in found["findings"]}


def test_text_out_of_a_config_cannot_act_in_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.json"
    path.write_text(
        '{"fp8_scaling": "delayed\x1b", "compute": "fp8", "fp8_format": "e4m3"}'.replace(
            "\x1b", "\\u001b"
        )
    )
    result = runner.invoke(app, ["check", str(path)])
    assert "\x1b" not in result.stdout


def test_the_docs_list_every_rule_as_it_is() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    for rule in PLAN_RULES.values():
        row = f"| {rule.id} | {rule.level.name.lower()} | {rule.title} | {rule.mechanism} | "
        assert f"{row}{rule.source} | {rule.shown} |" in docs, rule.id


def test_the_docs_list_every_setting() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    for name in FIELDS:
        assert f"\n| {name} | " in docs
