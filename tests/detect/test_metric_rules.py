"""Rules of a user on any metric, and NaN without a rule."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from tests.detect.feeding import alarms, findings

from trimtab import diagnose
from trimtab.core.block import Block, Column
from trimtab.core.config import Config, MetricRule
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Severity
from trimtab.detect.run.metric_rules import MetricRules
from trimtab.judge import Judge

FILE = Path(__file__).parents[2] / "examples" / "rules.toml"
RECIPES = Config.from_dict(tomllib.loads(FILE.read_text(encoding="utf-8"))).rules

LENGTH = 600
LEVELS = {
    "perf/mfu": (0.42, 0.25),
    "tokens_per_second": (90_000.0, 60_000.0),
    "max_attention_logit": (20.0, 300.0),
    "dead_experts": (0.0, 12.0),
    "router/entropy": (1.8, 0.1),
    "actor/entropy": (0.7, 0.01),
    "actor/kl": (0.1, 80.0),
    "response_length/mean": (300.0, 1200.0),
    "response_length/clip_ratio": (0.02, 0.8),
    "val/accuracy": (0.8, 0.4),
}
"""What each metric of a recipe is in a healthy run, and in one that goes wrong."""


def metric(name: str, *levels: float, noise: float = 0.03) -> Block:
    """A run that records one metric, at each level for equally long, with noise."""
    random = np.random.default_rng(len(name))
    level = np.repeat(levels, LENGTH // len(levels))
    values = level * (1 + noise * random.standard_normal(LENGTH))
    return Block.from_columns({name: Column.complete(values)}, step=np.arange(LENGTH))


def rules(**values: object) -> MetricRules:
    return MetricRules({"mfu": MetricRule.from_dict(values)})


def test_every_recipe_of_the_docs_has_a_world_here() -> None:
    assert RECIPES.keys() == LEVELS.keys()


@pytest.mark.parametrize("name", LEVELS)
def test_a_recipe_fires_where_the_metric_goes_wrong_and_is_silent_where_it_does_not(
    name: str,
) -> None:
    healthy, wrong = LEVELS[name]
    found = findings(lambda: MetricRules(RECIPES), metric(name, healthy, wrong))
    assert [item.signal for item in found] == [name]
    assert LENGTH // 2 <= found[0].step <= LENGTH // 2 + RECIPES[name].lasting
    assert not findings(lambda: MetricRules(RECIPES), metric(name, healthy))


def test_a_metric_that_swings_around_its_limit_is_reported_once() -> None:
    random = np.random.default_rng(1)
    noisy = 0.3 + 0.05 * random.standard_normal(LENGTH)
    run = Block.from_columns({"mfu": Column.complete(noisy)}, step=np.arange(LENGTH))
    assert len(alarms(lambda: rules(below=0.3, **{"for": 5}), run)) <= 10
    assert len(alarms(lambda: rules(below=0.3, **{"for": 20}), run)) <= 1


def test_a_slow_decline_is_a_change() -> None:
    falling = np.linspace(0.5, 0.2, LENGTH)
    run = Block.from_columns({"mfu": Column.complete(falling)}, step=np.arange(LENGTH))
    (found,) = alarms(lambda: rules(change=0.4, **{"for": 10}), run)
    assert found.symptom == "mfu below 0.2905 for 10 records"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_metric_that_becomes_non_finite_is_reported_without_a_rule(value: float) -> None:
    values = np.full(100, 0.5)
    values[50:] = value
    run = Block.from_columns({"val/acc": Column.complete(values)}, step=np.arange(100))
    (found,) = alarms(lambda: MetricRules({}), run)
    assert (found.symptom, found.step) == ("val/acc is not finite", 52)
    allowed = {"val/acc": MetricRule(nan=False)}
    assert not alarms(lambda: MetricRules(allowed), run)


def test_a_metric_that_never_was_finite_or_is_so_now_and_then_is_not_reported() -> None:
    never, at_times = np.full(100, np.nan), np.full(100, 0.5)
    at_times[::7] = np.nan
    columns = {"never": Column.complete(never), "at_times": Column.complete(at_times)}
    run = Block.from_columns(columns, step=np.arange(100))
    assert not alarms(lambda: MetricRules({}), run)


def test_gradients_that_overflow_under_a_loss_scaler_are_no_metric_of_the_users() -> None:
    norms = np.full(100, 0.5)
    norms[50:60] = np.inf
    columns = {"grad_norm/mlp": Column.complete(norms), "grad_norm": Column.complete(norms)}
    run = Block.from_columns(columns, step=np.arange(100))
    assert not alarms(lambda: MetricRules({}), run)


def test_a_rule_of_a_file_opens_an_incident_without_our_causes_and_says_to_look(
    tmp_path: Path,
) -> None:
    log = tmp_path / "run.csv"
    rows = [f"{step},{2 + 1 / (1 + step)},{0.4 if step < 300 else 0.2}" for step in range(600)]
    log.write_text("step,loss,perf/mfu\n" + "\n".join(rows))
    settings = tmp_path / "trimtab.toml"
    settings.write_text('[rules."perf/mfu"]\nbelow = 0.3\nfor = 20\n[rules.other]\nabove = 1\n')
    report = diagnose(log, config=Config.from_toml(settings))
    (incident,) = report.incidents
    to_do = "look at perf/mfu; act if the loss follows"
    assert report.verdict == f"perf/mfu below 0.3 for 20 records at step 319: {to_do}."
    assert incident.cause is None
    assert [one.cause for one in incident.hypotheses] == [None]
    assert any("rules.other was not checked" in note for note in report.notes)


def test_a_warning_opens_no_incident() -> None:
    config = Config.from_dict({"rules": {"mfu": {"below": 0.3, "severity": "warn"}}})
    judge = Judge(config)
    found = judge.update(metric("mfu", 0.5, 0.1)).findings
    assert [item.severity for item in found] == [Severity.WARN]
    assert not judge.incidents


def test_rules_survive_their_way_through_json() -> None:
    config = Config.from_dict({"rules": {"a/b": {"below": 1, "for": 3}}})
    assert Config.from_dict(config.to_dict()) == config
    assert config.override({"threshold_scale": 2}).rules == config.rules


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mfu": {"belwo": 0.3}}, "rules.mfu: there is no setting 'belwo'; did you mean"),
        ({"mfu": {"below": "low"}}, "rules.mfu: below must be a number, got 'low'"),
        ({"mfu": {"for": 0}}, "rules.mfu: for must be at least 1"),
        ({"mfu": 0.3}, "rules.mfu must be a table such as"),
        ("textbook", "rules are tables such as"),
    ],
)
def test_a_wrong_rule_is_named(given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said.split("'")[0]):
        Config.from_dict({"rules": given})
