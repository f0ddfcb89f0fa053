"""Sites: modules found by structure and name, and numbers equal to those of a plain pass."""

from pathlib import Path

import pytest
import torch
from tests.kit.site_models import LAYERS, VOCABULARY, Layer, Timm, Titan, architectures, tokens
from tests.kit.tiny import journal_of
from tests.kit.user_loop import take_step
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab.core.errors import ConfigError
from trimtab.live.measure.attention_logits import largest_logit
from trimtab.live.measure.sites import find_sites


def names(model: nn.Module, kind: str) -> list[str]:
    return [site.name for site in find_sites(model) if site.kind == kind]


def train(model: nn.Module, path: Path, facts: dict[str, object] | None = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=path, facts=facts) as guard:
        for step in range(3):
            logits = model(tokens(step)[:, :-1])
            take_step(
                guard,
                optimizer,
                F.cross_entropy(logits.flatten(0, 1), tokens(step)[:, 1:].flatten()),
            )


def test_sites_are_found_and_a_regression_has_no_logits() -> None:
    assert names(Titan(), "attention") == [f"layers.{n}.attention" for n in range(LAYERS)]
    assert names(Titan(), "logits") == ["output"]
    assert names(Timm(), "embedding") == ["patch_embed"]
    assert names(Timm(), "logits") == ["head"]
    regression = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert names(regression, "logits") == [""]  # only what it returns as `logits` would count
    with pytest.raises(ConfigError, match=r"no module 'layers\.9'"):
        find_sites(Titan(), {"attention": "layers.9"})


class OwnBlock(nn.Module):
    """A block that has attention written into it, and no module for it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.mlp = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x)[:, None] for one in (self.q, self.k, self.v))
        seen: torch.Tensor = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        further: torch.Tensor = seen + self.mlp(seen)
        return further


def test_attention_without_a_module_is_that_of_its_block(tmp_path: Path) -> None:
    blocks = nn.Sequential(OwnBlock(), OwnBlock())
    model = nn.Sequential(nn.Embedding(VOCABULARY, 8), blocks, nn.Linear(8, VOCABULARY))
    assert names(model, "attention") == ["1.0", "1.1"]
    train(model, tmp_path / "run")
    column = journal_of(tmp_path / "run").column("max_attention_logit")
    assert column.finite.any()


def test_every_site_of_known_architectures_is_found() -> None:
    pytest.importorskip("transformers")
    for architecture in architectures():
        found: dict[str, list[str]] = {}
        for site in find_sites(architecture.make()):
            found.setdefault(site.kind, []).append(site.name)
        expected = {kind: sorted(names) for kind, names in architecture.expected.items()}
        assert {kind: sorted(names) for kind, names in found.items()} == expected, architecture.name


def test_values_are_those_of_a_plain_pass(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Titan()
    x = tokens(0)[:, :-1]
    layer = model.layers["0"]
    assert isinstance(layer, Layer)
    with torch.no_grad():
        logits = model(x)
        inner, attention = layer.norm1(model.tok_embeddings(x)), layer.get_submodule("attention")
        both = (attention.get_submodule(name)(inner) for name in ("wq", "wk"))
        q, k = (part.view(*x.shape, -1, 8).transpose(1, 2) for part in both)
    matrix = q @ k.repeat_interleave(2, 1).transpose(-2, -1) / 8**0.5
    future = torch.ones(matrix.shape[-2:], dtype=torch.bool).triu(1)
    peak = float(matrix.masked_fill(future, -torch.inf).max())
    train(model, tmp_path)
    block = journal_of(tmp_path)

    def first(name: str) -> float:
        return float(block.column(name).values[0])

    assert first("max_attention_logit/layers.0.attention") == pytest.approx(peak, rel=1e-4)
    assert first("max_attention_logit") >= peak * 0.999
    assert first("max_log_z") == pytest.approx(float(logits.logsumexp(-1).abs().max()), rel=1e-4)
    assert first("max_logit") == pytest.approx(float(logits.abs().max()), rel=1e-4)
    p = logits.softmax(-1)
    entropy = float(-(p * p.log()).sum(-1).mean())
    assert first("logit_entropy") == pytest.approx(entropy, rel=1e-4)
    assert first("output_rms/norm") == pytest.approx(1.0, abs=0.01)
    assert not block.column("max_log_z").present[1:].any()  # not measured again yet


def test_functions_are_put_back_when_a_forward_pass_raises(tmp_path: Path) -> None:
    model = Titan()
    before = F.scaled_dot_product_attention, F.softmax, torch.Tensor.softmax
    optimizer = torch.optim.AdamW(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path):
        with pytest.raises(RuntimeError):
            model.get_submodule("layers.0.attention")(torch.ones(2, 3, 7))
        assert (F.scaled_dot_product_attention, F.softmax, torch.Tensor.softmax) == before
    assert "softmax" not in vars(torch.Tensor)


def test_a_compiled_model_is_measured_in_every_turn_without_a_second_graph(tmp_path: Path) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model = Titan()
    optimizer = torch.optim.AdamW(model.parameters())
    config = trimtab.Config().override({"live.telemetry_every": 2})
    with trimtab.watch(model, optimizer, run_dir=tmp_path, config=config) as guard:
        counter = CompileCounter()
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for step in range(5):
            take_step(guard, optimizer, compiled(tokens(step)).square().mean())
    assert counter.frame_count == 1
    block = journal_of(tmp_path)
    assert block.column("max_log_z").present.tolist() == [True, False, True, False, True]
    assert not block.column("max_attention_logit").recorded  # not hooked, and said once
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("length", [64, 4096])
def test_the_largest_logit_is_that_of_the_full_matrix(length: int) -> None:
    torch.manual_seed(1)
    q, k = torch.randn(1, 4, length, 16) + torch.randn(1, 4, 1, 16), torch.randn(1, 2, length, 16)
    logits = q @ k.repeat_interleave(2, 1).transpose(-2, -1) / 4
    mask = torch.rand(1, 1, length, length) < 0.5
    expected = float(logits.masked_fill(~mask, -torch.inf).max())
    assert float(largest_logit(q, k, mask)) == pytest.approx(expected, rel=0.01)
