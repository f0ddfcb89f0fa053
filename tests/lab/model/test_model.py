"""What the model computes, and its size by name."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.lab.models import TINY, gradients, make, measured, rows
from torch import Tensor

from trimtab.core.errors import ConfigError
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.sizes import SIZES, ModelConfig


def test_shapes_and_the_loss_of_an_untrained_model() -> None:
    output = make()(*rows())
    assert output.logits.shape == (2, 24, TINY.vocab_size)
    assert output.loss.shape == ()
    assert output.loss.item() == pytest.approx(math.log(TINY.vocab_size), abs=0.1)
    assert output.signals is None


@pytest.mark.parametrize("options", [{}, {"post_norm": True}, {"qk_norm": True}])
def test_the_future_does_not_change_the_past(options: dict[str, Any]) -> None:
    model = make(**options)
    tokens, targets = rows()
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % TINY.vocab_size
    before, after = model(tokens, targets).logits, model(other, targets).logits
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10], after[:, 10])


def test_the_largest_attention_logit_equals_a_reference() -> None:
    model = make(init_std=0.3)
    seen: list[Tensor] = []
    for name, module in model.named_modules():
        if name.endswith("qkv"):
            module.register_forward_hook(lambda _m, _i, out: seen.append(out.double()))
    peaks = measured(model).max_attention_logit
    assert peaks.shape == (TINY.layers,)
    half = TINY.head_size // 2
    for peak, qkv in zip(peaks, seen, strict=True):
        # Rotary positions as complex numbers, one pair of positions at a time.
        query, key, _ = qkv.view(2, 24, 3, TINY.heads, TINY.head_size).unbind(2)
        turns = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        largest = -math.inf
        for late in range(24):
            for early in range(late + 1):
                turn = torch.polar(torch.ones(half, dtype=torch.float64), (late - early) * turns)
                q = torch.complex(query[:, late, :, :half], query[:, late, :, half:]) * turn
                k = torch.complex(key[:, early, :, :half], key[:, early, :, half:])
                logits = (q * k.conj()).real.sum(-1) / math.sqrt(TINY.head_size)
                largest = max(largest, logits.max().item())
        assert peak.item() == pytest.approx(largest, rel=1e-5)


def test_log_z_and_token_losses_equal_references() -> None:
    model = make(init_std=0.3)
    model.measure = True
    tokens, targets = rows()
    targets = targets.clone()
    targets[0, 3] = -100
    output = model(tokens, targets)
    logits = output.logits.double()
    log_z = logits.exp().sum(-1).log()
    assert output.signals.max_log_z.item() == pytest.approx(log_z.abs().max().item(), rel=1e-5)
    wanted = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    losses = (log_z - wanted) * (targets >= 0)
    torch.testing.assert_close(output.signals.token_losses.double(), losses, rtol=1e-5, atol=1e-5)
    assert output.loss.item() == pytest.approx(losses.sum().item() / 47, rel=1e-5)


def test_qk_norm_bounds_attention_logits() -> None:
    free, bound = make(init_std=1.0), make(init_std=1.0, qk_norm=True)
    limit = math.sqrt(TINY.head_size)
    assert measured(free).max_attention_logit.min() > 2 * limit
    assert measured(bound).max_attention_logit.max() <= limit * 1.0001


def test_measuring_does_not_change_the_trained_bits() -> None:
    model = make()
    before = gradients(model)
    model.measure = True
    after = gradients(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


RICH = ModelConfig(
    vocab_size=512,
    width=64,
    layers=2,
    heads=4,
    tied_head=False,
    qk_norm=True,
    mup_base_width=32,
)
"""Every option that may be on at the same time."""


def test_a_measured_step_never_reads_the_device() -> None:
    # Any read of a value on the meta device raises.
    with torch.device("meta"):
        model = Gpt(RICH)
        tokens = torch.zeros(2, 8, dtype=torch.int64)
    model.measure = True
    model(tokens, tokens).loss.backward()


MEANT = {"0.15M": 150e3, "1M": 1e6, "3M": 3e6, "10M": 10e6, "x1": 50e6}


@pytest.mark.parametrize("name", list(MEANT))
def test_a_size_is_what_its_name_says(name: str) -> None:
    config = SIZES[name]
    with torch.device("meta"):
        model = Gpt(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == config.parameters
    assert counted == pytest.approx(MEANT[name], rel=0.15)


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
