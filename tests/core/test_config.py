import json
from dataclasses import fields
from pathlib import Path

import pytest

from trimtab.core.config import Config, RuleSetName
from trimtab.core.errors import ConfigError


def test_settings_come_from_toml_and_go_to_json(tmp_path: Path) -> None:
    path = tmp_path / "trimtab.toml"
    path.write_text("[live]\ntelemetry_every = 50\nhang_seconds = 4\n")
    config = Config.from_toml(path)
    assert config.live.telemetry_every == 50
    assert config.live.hang_seconds == 4.0
    assert json.loads(json.dumps(config.to_dict()))["live"]["telemetry_every"] == 50
    assert Config.from_dict(config.to_dict()) == config


def test_a_pyproject_section_is_found(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\nname = 'x'\n[tool.trimtab.live]\nlag_steps = 7\n")
    assert Config.from_toml(path).live.lag_steps == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recove": {}}, "did you mean 'recover'"),
        ({"recover": {"zzz": 1}}, "known: snapshot_every"),
        ({"recover": 3}, "table of settings"),
        ({"recover": {"snapshot_every": "100"}}, "must be a whole number"),
        ({"recover": {"snapshot_every": True}}, "must be a whole number"),
        ({"recover": {"snapshot_every": -1}}, "at least 0"),
        ({"recover": {"rollback": "maybe"}}, "rollback must be one of: ask, auto, off"),
        ({"live": {"telemetry_every": -1}}, "telemetry_every must not be negative"),
    ],
)
def test_a_wrong_setting_is_an_error(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_dict(values)


def test_a_file_that_is_not_toml_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe = [")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        Config.from_toml(path)


def test_a_pyproject_without_the_section_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.ruff]\nline-length = 100\n")
    with pytest.raises(ConfigError, match=r"has no \[tool.trimtab\] table"):
        Config.from_toml(path)


@pytest.mark.parametrize("name", ["threshold_scale", "detect.threshold_scale"])
def test_a_setting_is_changed_by_its_full_name_or_its_last_part(name: str) -> None:
    before = Config(rule_set=RuleSetName.TEXTBOOK)
    after = before.override({name: 2})
    assert after.detect.threshold_scale == 2.0
    assert after.rule_set is RuleSetName.TEXTBOOK
    assert before.detect.threshold_scale == 1.0


def test_the_page_on_settings_lists_every_section() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in (field.name for field in fields(Config)):
        assert f"| `{name}` |" in page
