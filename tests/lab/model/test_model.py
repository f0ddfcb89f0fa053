"""What the model computes: shapes, causality, positions, init, signals against references."""

import math
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch
from tests.lab.models import TINY, gradients, make, measured, rows
from torch import Tensor

from trimtab.lab.model.gpt import Gpt, rotary_table, rotate


def test_shapes_and_the_loss_of_an_untrained_model() -> None:
    output = make()(*rows())
    assert output.logits.shape == (2, 24, TINY.vocab_size)
    assert output.loss.shape == ()
    assert output.loss.item() == pytest.approx(math.log(TINY.vocab_size), abs=0.1)
    assert output.signals is None


def test_names_say_what_a_parameter_is() -> None:
    model = make(tied_head=False, qk_norm=True, embedding_norm=True)
    names = {name.replace(".1.", ".0.") for name, _ in model.named_parameters()}
    assert names == {
        "embed.weight",
        "norm_embed.weight",
        "blocks.0.norm_attention.weight",
        "blocks.0.attention.qkv.weight",
        "blocks.0.attention.norm_query.weight",
        "blocks.0.attention.norm_key.weight",
        "blocks.0.attention.out.weight",
        "blocks.0.norm_mlp.weight",
        "blocks.0.mlp.gate.weight",
        "blocks.0.mlp.up.weight",
        "blocks.0.mlp.down.weight",
        "norm.weight",
        "head.weight",
    }


@pytest.mark.parametrize("options", [{}, {"post_norm": True}, {"qk_norm": True}])
def test_the_future_does_not_change_the_past(options: dict[str, Any]) -> None:
    model = make(**options)
    tokens, targets = rows()
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % TINY.vocab_size
    before, after = model(tokens, targets).logits, model(other, targets).logits
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10], after[:, 10])


def test_rotary_positions_see_only_the_distance() -> None:
    table = rotary_table(40, 16, torch.device("cpu"))
    query, key = torch.randn(2, 16, generator=torch.Generator().manual_seed(0)).unbind()
    # The same vector at all 40 positions: the product must depend on the distance alone.
    products = rotate(query.expand(40, 16), *table) @ rotate(key.expand(40, 16), *table).T
    for distance in (0, 1, 7, 30):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert (products[0, 1] - products[0, 2]).abs() > 1e-3
    torch.testing.assert_close(products[0, 0], query @ key)


def test_a_tied_head_is_the_embedding() -> None:
    tied, untied = make(), make(tied_head=False)
    assert [name for name in tied.state_dict() if "head" in name] == []
    assert "head.weight" in untied.state_dict()
    assert untied.head is not None
    with torch.no_grad():
        untied.embed.weight.copy_(tied.embed.weight)
        untied.head.weight.copy_(tied.embed.weight)
    untied.blocks.load_state_dict(tied.blocks.state_dict())
    assert torch.equal(tied(*rows()).logits, untied(*rows()).logits)
    both = gradients(untied)
    torch.testing.assert_close(
        gradients(tied)["embed.weight"], both["embed.weight"] + both["head.weight"]
    )


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


def test_the_z_loss_is_added() -> None:
    output = make(z_loss=0.1, init_std=0.3)(*rows())
    log_z = output.logits.double().logsumexp(-1)
    expected = output.cross_entropy.item() + 0.1 * log_z.square().mean().item()
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


def test_qk_norm_bounds_attention_logits() -> None:
    free, bound = make(init_std=1.0), make(init_std=1.0, qk_norm=True)
    limit = math.sqrt(TINY.head_size)
    assert measured(free).max_attention_logit.min() > 2 * limit
    assert measured(bound).max_attention_logit.max() <= limit * 1.0001


def test_measuring_does_not_change_the_trained_bits() -> None:
    model = make(z_loss=1e-4)
    before = gradients(model)
    model.measure = True
    after = gradients(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_equal_generators_give_equal_models_and_leave_the_global_one_alone() -> None:
    state = torch.random.get_rng_state()
    one, two, other = make(seed=3), make(seed=3), make(seed=4)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.embed.weight, other.embed.weight)


def test_a_model_from_the_meta_device_is_the_same() -> None:
    with torch.device("meta"):
        model = Gpt(TINY)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    model.init_weights(torch.Generator().manual_seed(0))
    direct = make().state_dict()
    assert all(torch.equal(value, direct[name]) for name, value in model.state_dict().items())


def test_the_init_has_the_deviations_it_promises() -> None:
    model = make(width=256, init_std=0.1)
    state = model.state_dict()
    assert state["embed.weight"].std().item() == pytest.approx(0.1, rel=0.02)
    assert state["blocks.0.attention.qkv.weight"].std().item() == pytest.approx(0.1, rel=0.02)
    assert state["blocks.0.mlp.down.weight"].std().item() == pytest.approx(0.05, rel=0.02)
    assert (state["blocks.0.norm_mlp.weight"] == 1).all()
