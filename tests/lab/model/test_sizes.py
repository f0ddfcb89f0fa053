"""The named sizes, and invalid configs."""

import math
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch

from trimtab.core.errors import ConfigError
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.sizes import SIZES, ModelConfig

MEANT = {"0.15M": 150e3, "1M": 1e6, "3M": 3e6, "10M": 10e6, "x1": 50e6}


@pytest.mark.parametrize("name", list(MEANT))
def test_a_size_is_what_its_name_says(name: str) -> None:
    config = SIZES[name]
    with torch.device("meta"):
        model = Gpt(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == config.parameters
    assert counted == pytest.approx(MEANT[name], rel=0.15)


def test_every_option_is_counted() -> None:
    config = ModelConfig(
        vocab_size=300,
        width=48,
        layers=3,
        heads=2,
        tied_head=False,
        qk_norm=True,
        embedding_norm=True,
    )
    counted = sum(parameter.numel() for parameter in Gpt(config).parameters())
    assert counted == config.parameters


def test_there_are_no_other_sizes() -> None:
    assert list(SIZES) == list(MEANT)


def test_the_init_follows_the_width_only_where_the_classic_one_is_too_large() -> None:
    def std(width: int, **options: Any) -> float:
        return ModelConfig(vocab_size=512, layers=1, heads=1, width=width, **options).base_std

    assert std(64) == std(832) == 0.02
    assert std(14336) == pytest.approx(math.sqrt(1 / (3 * 14336)))  # BLOOM-176B: 0.0048
    assert std(14336, init_std=0.01) == 0.01


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 30}, "even multiple of heads"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocab_size": 0}, "vocab_size must be"),
        ({"z_loss": -1.0}, "z_loss must be"),
        ({"z_loss": math.nan}, "z_loss must be"),
        ({"init_std": 0.0}, "init_std must be positive"),
        ({"mup_base_width": 24}, "multiple of the head size 16"),
    ],
)
def test_an_impossible_shape_is_an_error(changed: dict[str, Any], message: str) -> None:
    shape: dict[str, Any] = {"vocab_size": 512, "width": 64, "layers": 2, "heads": 4}
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**(shape | changed))


def test_a_missing_package_is_reported_with_the_install_command() -> None:
    script = (
        "import sys\n"
        "sys.modules['tokenizers'] = None\n"  # any import of it now raises
        "import trimtab.lab.model.sizes\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "MissingExtra: the lab needs packages that are not installed: tokenizers" in run.stderr
    assert 'pip install -e ".[lab]"' in run.stderr
