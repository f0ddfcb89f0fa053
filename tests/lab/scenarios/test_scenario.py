"""Scenarios: the setting of a seed, the twin of a run, named sizes, its description."""

import json

import pytest

from trimtab.core.errors import ConfigError
from trimtab.core.jsonable import to_jsonable
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.scenarios.catalogue import CLEAN, KINDS
from trimtab.lab.scenarios.scenario import Grade, Regime, Scenario, Setting, SuiteSplit
from trimtab.lab.trainer.intervention import Base
from trimtab.lab.trainer.train_config import Dtype

SEEDS = range(200)
SUITE_SEEDS = range(5)
CHOICES = ("lr", "batch_size", "width", "length")


def _settings(split: SuiteSplit, seeds: range = SEEDS) -> list[Setting]:
    return [one for seed in seeds if (one := Setting.from_seed(seed)).split is split]


def _choices(settings: list[Setting]) -> set[tuple[float, ...]]:
    return {tuple(getattr(one, name) for name in CHOICES) for one in settings}


def test_held_out_runs_have_settings_that_tuning_never_sees() -> None:
    tune, held_out = (_settings(split) for split in SuiteSplit)
    for name in CHOICES:
        seen, new = ({getattr(one, name) for one in part} for part in (tune, held_out))
        assert new - seen, name
    # In the suite, which has few seeds, no held-out run has a setting that tuning could have.
    assert not _choices(_settings(SuiteSplit.HELD_OUT, SUITE_SEEDS)) & _choices(tune)


@pytest.mark.parametrize("seeds", [SEEDS, SUITE_SEEDS])
def test_both_regimes_are_in_both_splits(seeds: range) -> None:
    for split in SuiteSplit:
        assert {one.regime for one in _settings(split, seeds)} == set(Regime)


@pytest.mark.parametrize(
    ("base", "dtype"),
    [
        (Base.PLAIN, Dtype.FP32),
        (Base.FP16, Dtype.FP16),
        (Base.RANKS, Dtype.FP32),
        (Base.RESUME, Dtype.FP32),
    ],
)
def test_a_base_determines_the_dtype(base: Base, dtype: Dtype) -> None:
    scenario = Scenario(kind=CLEAN, seed=3, base=base)
    config = scenario.config()
    assert config.dtype is dtype
    assert scenario.stop == (scenario.onset if base is Base.RESUME else None)
    assert config.checkpoint_steps == (scenario.stop or scenario.steps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_twin_is_the_same_run_without_the_intervention(kind: str) -> None:
    scenario = Scenario(kind=kind, seed=4, steps=200)
    twin = scenario.twin()
    assert twin.intervention() is None
    assert twin.required_base is scenario.required_base is KINDS[kind].base
    assert twin.setting == scenario.setting
    assert twin.steps == scenario.steps
    assert twin.stop == scenario.stop
    if not KINDS[kind].from_start and kind != "evaluation":
        assert twin.config() == scenario.config()


def test_runs_of_a_seed_share_a_twin_per_base() -> None:
    runs = [Scenario(kind=k, seed=s, grade=g) for k in KINDS for s in (0, 1) for g in Grade]
    assert len({run.twin() for run in runs}) == 2 * len(Base)
    assert len({run.twin().name for run in runs}) == 2 * len(Base)


def test_onset_and_severity_are_drawn_from_their_ranges() -> None:
    for kind in KINDS:
        onsets = set()
        for seed in range(20):
            mild, severe = (Scenario(kind=kind, seed=seed, grade=grade) for grade in Grade)
            assert 0.42 * 600 <= mild.onset <= 0.62 * 600
            assert mild.onset == severe.onset  # the grade does not change the onset
            ones = [one.intervention() for one in (mild, severe)]
            assert ones[0] is not None
            assert ones[1] is not None
            assert 0.2 <= ones[0].severity <= 0.45
            assert 0.88 <= ones[1].severity <= 1.0
            assert ones[0].onset == mild.onset
            onsets.add(mild.onset)
        assert len(onsets) > 10
    given = Scenario(kind="F05", seed=0, severity=0.3).intervention()
    assert given is not None
    assert given.severity == 0.3


def test_the_description_of_a_scenario_is_jsonable() -> None:
    for kind in KINDS:
        scenario = Scenario(kind=kind, seed=2)
        description = to_jsonable(scenario.description())
        assert json.loads(json.dumps(description)) == description
        assert description["twin"] == scenario.twin().name
        assert description["is_fault"] == KINDS[kind].is_fault
        assert description["onset"] == (0 if KINDS[kind].from_start else scenario.onset)
        assert (description["end"] or 10**9) > description["onset"]
    clean = Scenario(kind=CLEAN, seed=2).description()
    assert (clean["is_fault"], clean["cause"], clean["onset"]) == (False, None, None)
    assert clean["twin"] is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["0.15M", "x1"])
def test_every_fault_can_be_planted_in_every_size(kind: str, size: str) -> None:
    scenario = Scenario(kind=kind, seed=0, steps=100, size=size, at=40)
    config, twin = scenario.config(), scenario.twin()
    intervention = scenario.intervention()
    assert intervention is not None
    assert intervention.onset == 40
    assert config.model.width == SIZES[size].width
    assert config.dtype is (Dtype.FP16 if scenario.required_base is Base.FP16 else Dtype.BF16)
    assert scenario.name.endswith(f"-{size}-at40")
    assert twin.config().model == SIZES[size]
    assert twin.stop == scenario.stop  # a resumed twin is resumed at the same step
    assert (scenario.stop == 40) is (scenario.required_base is Base.RESUME)
    assert scenario.description()["size"] == size


def test_x1_is_what_the_guides_ask_for() -> None:
    config = Scenario(kind="clean", seed=0, size="x1").config()
    assert 49e6 < config.model.parameters < 51e6
    assert (config.clip, config.optimizer.beta2, config.optimizer.weight_decay) == (1.0, 0.95, 0.1)
    assert (config.optimizer.lr, config.warmup, config.model.post_norm) == (1e-3, 60, False)


def test_what_cannot_be_is_refused_and_the_suite_is_as_it_was() -> None:
    with pytest.raises(ConfigError, match="unknown size"):
        Scenario(kind="F02", seed=0, size="7B")
    for at in (0, 600, -1):
        with pytest.raises(ConfigError, match="onset must be in 1 to 599"):
            Scenario(kind="F02", seed=0, at=at)
    usual = Scenario(kind="F02", seed=3)
    assert usual.name == "F02-severe-seed3"
    assert "size" not in usual.description()
    assert usual.twin().name == "clean-plain-seed3"
