"""Scenarios of a named size: the plan of the guides, at any onset, with any fault."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from trimtab.core.errors import ConfigError
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.intervention import Base
from trimtab.lab.trainer.train_config import Dtype


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
