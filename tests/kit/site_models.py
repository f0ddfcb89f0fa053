"""Small models of twelve architectures, each with the modules that its sites should be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tests.kit.check_objects.architectures import LAYERS as LAYERS
from tests.kit.check_objects.architectures import build
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.sizes import ModelConfig

WIDTH, HEADS, VOCABULARY, LENGTH = 32, 4, 101, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model, and the modules that are expected as sites."""

    name: str
    make: Callable[[], nn.Module]
    expected: dict[str, list[str]] = field(default_factory=dict)
    """By kind; "" is the model itself."""


def tokens(seed: int = 0, length: int = LENGTH) -> torch.Tensor:
    """Return a batch of three sequences."""
    return torch.randint(0, VOCABULARY, (3, length), generator=torch.Generator().manual_seed(seed))


def _layers(pattern: str) -> list[str]:
    return [pattern.format(layer) for layer in range(LAYERS)]


def _sites(
    embedding: str, block: str, attention: str, mlp: str, final_norm: str, logits: str
) -> dict[str, list[str]]:
    """Return the modules by kind; attention and MLP are named within their block."""
    return {
        "embedding": [embedding],
        "block": _layers(block),
        "attention": _layers(block + attention),
        "mlp": _layers(block + mlp),
        "final_norm": [final_norm],
        "logits": [logits],
    }


class EagerAttention(nn.Module):
    """Attention as nanoGPT has it without flash: the matrix is made."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.c_attn(x).split(WIDTH, dim=2)
        )
        logits = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = F.softmax(logits.masked_fill(future, -torch.inf), dim=-1)
        out: torch.Tensor = self.c_proj((weights @ v).transpose(1, 2).reshape(x.shape))
        return out


class FusedAttention(nn.Module):
    """Attention as timm and torchtitan have it, with the names of either."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.proj = nn.Linear(WIDTH, WIDTH)
        else:  # two heads of keys for four of queries
            self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
            self.wk = nn.Linear(WIDTH, WIDTH // 2, bias=False)
            self.wv = nn.Linear(WIDTH, WIDTH // 2, bias=False)
            self.wo = nn.Linear(WIDTH, WIDTH, bias=False)
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend: to everything if fused, else causally."""
        batch, length, _ = x.shape
        parts = self.qkv(x).chunk(3, -1) if self.fused else (self.wq(x), self.wk(x), self.wv(x))
        q, k, v = (p.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for p in parts)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=not self.fused, enable_gqa=not self.fused
        )
        out = out.transpose(1, 2).reshape(x.shape)
        done: torch.Tensor = self.proj(out) if self.fused else self.wo(out)
        return done


class Layer(nn.Module):
    """Attention and MLP, named as the caller says."""

    def __init__(self, attention: str, mlp: str, module: nn.Module) -> None:
        super().__init__()
        self.names = attention, mlp
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.add_module(attention, module)
        hidden = (nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.add_module(mlp, nn.Sequential(*hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attention, mlp = (self.get_submodule(name) for name in self.names)
        x = x + attention(self.norm1(x))
        out: torch.Tensor = x + mlp(self.norm2(x))
        return out


class NanoGpt(nn.Module):
    """As nanoGPT: a tied head that is no module, logits and loss in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(Layer("attn", "mlp", EagerAttention()) for _ in range(LAYERS)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        wte, wpe, h, ln_f = self.transformer.values()
        y = wte(x) + wpe(torch.arange(x.shape[1]))
        for block in h:  # type: ignore[attr-defined]
            y = block(y)
        return F.linear(ln_f(y), wte.get_parameter("weight")), None


class Titan(nn.Module):
    """As torchtitan's Llama: layers in a dict, `wq`, `feed_forward`, `output`."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        layers = (Layer("attention", "feed_forward", FusedAttention(False)) for _ in range(LAYERS))
        self.layers = nn.ModuleDict({str(number): layer for number, layer in enumerate(layers)})
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tok_embeddings(x)
        for layer in self.layers.values():
            y = layer(y)
        logits: torch.Tensor = self.output(self.norm(y))
        return logits


class Timm(nn.Module):
    """As timm's ViT: `patch_embed`, `blocks`, `norm`, `head` and `num_classes`."""

    def __init__(self) -> None:
        super().__init__()
        self.num_classes = 10
        self.patch_embed = nn.Conv2d(3, WIDTH, 8, 8)
        self.blocks = nn.Sequential(
            *(Layer("attn", "mlp", FusedAttention(True)) for _ in range(LAYERS))
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patch_embed(x).flatten(2).transpose(1, 2)
        scores: torch.Tensor = self.head(self.norm(self.blocks(y)).mean(dim=1))
        return scores


class Plain(nn.Module):
    """nn.TransformerEncoder between an embedding and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.readout = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits: torch.Tensor = self.readout(self.encoder(self.embed(x), mask=mask))
        return logits


def architectures() -> list[Architecture]:
    """Return all of them; needs transformers."""
    stacks = [f"{stack}.block.{n}" for stack in ("encoder", "decoder") for n in range(LAYERS)]
    crossed = [f"decoder.block.{n}.layer.1.EncDecAttention" for n in range(LAYERS)]
    feeds = [f"{b}.layer.{1 + b.startswith('decoder')}.DenseReluDense" for b in stacks]
    decoder = _sites(
        "model.embed_tokens", "model.layers.{}", ".self_attn", ".mlp", "model.norm", "lm_head"
    )
    known: dict[str, dict[str, list[str]]] = {
        **dict.fromkeys(("Llama", "Mistral", "Qwen3"), decoder),
        "Mixtral": decoder | {"router": _layers("model.layers.{}.mlp.gate")},
        "GPT-2": _sites(
            "transformer.wte", "transformer.h.{}", ".attn", ".mlp", "transformer.ln_f", "lm_head"
        ),
        "BERT": _sites(
            "bert.embeddings",
            "bert.encoder.layer.{}",
            ".attention.self",
            ".output.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
        ),
        "ViT": _sites(
            "vit.embeddings", "vit.layers.{}", ".attention", ".mlp", "vit.layernorm", "classifier"
        ),
        "T5": {
            "embedding": ["shared"],
            "block": stacks,
            "attention": [f"{b}.layer.0.SelfAttention" for b in stacks] + crossed,
            "mlp": feeds,
            "final_norm": ["decoder.final_layer_norm"],
            "logits": ["lm_head"],
        },
    }
    return [
        *(
            Architecture(name=name, make=partial(build, name), expected=expected)
            for name, expected in known.items()
        ),
        Architecture(
            name="nanoGPT, eager",
            make=NanoGpt,
            expected=_sites(
                "transformer.wte", "transformer.h.{}", ".attn", ".mlp", "transformer.ln_f", ""
            ),
        ),
        Architecture(
            name="torchtitan",
            make=Titan,
            expected=_sites(
                "tok_embeddings", "layers.{}", ".attention", ".feed_forward", "norm", "output"
            ),
        ),
        Architecture(
            name="timm ViT",
            make=Timm,
            expected=_sites("patch_embed", "blocks.{}", ".attn", ".mlp", "norm", "head"),
        ),
        Architecture(
            name="nn.TransformerEncoder",
            make=Plain,
            expected=_sites(
                "embed", "encoder.layers.{}", ".self_attn", ".linear2", "encoder.norm", "readout"
            ),
        ),
        Architecture(
            name="lab Gpt",
            make=lambda: Gpt(
                ModelConfig(vocab_size=VOCABULARY, width=WIDTH, layers=LAYERS, heads=HEADS)
            ),
            expected=_sites("embed", "blocks.{}", ".attention", ".mlp", "norm", ""),
        ),
    ]
