"""Well-known architectures of `transformers`, small and with random weights, ready to train."""

from typing import Any

import torch
from torch import Tensor, nn

VOCAB, LENGTH, ROWS, WIDTH, LAYERS = 512, 32, 8, 64, 4
STEPS = 400

Batch = dict[str, Tensor]


def text(seed: int = 0, *, num_batches: int = 16) -> list[Batch]:
    """Batches of tokens with the counts of text: the n-th token has a chance of 1/n."""
    generator = torch.Generator().manual_seed(seed)
    chance = 1.0 / torch.arange(1, VOCAB - 4)
    return [
        {"input_ids": (ids := _draw(chance, generator)), "labels": ids.clone()}
        for _ in range(num_batches)
    ]


def _draw(chance: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.multinomial(chance, ROWS * LENGTH, replacement=True, generator=generator)
    return drawn.view(ROWS, LENGTH) + 4


def masked_text(seed: int = 0) -> list[Batch]:
    """15 % of the tokens masked; only these are targets."""
    generator = torch.Generator().manual_seed(seed + 1)
    batches = []
    for batch in text(seed):
        is_masked = torch.rand(ROWS, LENGTH, generator=generator) < 0.15
        is_masked[:, 0] = True
        ids = batch["input_ids"].masked_fill(is_masked, 3)
        batches.append({"input_ids": ids, "labels": batch["labels"].masked_fill(~is_masked, -100)})
    return batches


def images(seed: int = 0) -> list[Batch]:
    """Images of noise, of ten classes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "pixel_values": torch.randn(ROWS, 3, 32, 32, generator=generator),
            "labels": torch.randint(10, (ROWS,), generator=generator),
        }
        for _ in range(16)
    ]


_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}
_DECODER = _SIZES | {
    "num_key_value_heads": 2,
    "max_position_embeddings": 2 * LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = _DECODER | {"head_dim": 16}
_GPT2 = {"vocab_size": VOCAB, "n_positions": 2 * LENGTH, "n_embd": WIDTH, "n_layer": LAYERS}
_MAMBA = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 8}
_T5 = {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 16, "d_ff": 2 * WIDTH, "num_layers": LAYERS}
_VIT = {name: size for name, size in _SIZES.items() if name != "vocab_size"}

MODELS: dict[str, tuple[str, str, dict[str, int]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2 | {"n_head": 4}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _DECODER),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", _HEADS | {"num_local_experts": 4}),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS),
    "OLMo 2": ("Olmo2ForCausalLM", "Olmo2Config", _DECODER),
    "Mamba": ("MambaForCausalLM", "MambaConfig", _MAMBA),
    "ViT": (
        "ViTForImageClassification",
        "ViTConfig",
        _VIT | {"image_size": 32, "patch_size": 8, "num_labels": 10},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        _T5 | {"num_heads": 4, "decoder_start_token_id": 0},
    ),
    "BERT": ("BertForMaskedLM", "BertConfig", _SIZES),
    "Phi": ("PhiForCausalLM", "PhiConfig", _DECODER | {"num_key_value_heads": 4}),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _HEADS),
}
"""By name: model and config in `transformers`, and the sizes."""
NAMES = tuple(MODELS)


def build(name: str, seed: int = 0) -> nn.Module:
    """Return a small model of an architecture, initialised as `transformers` does."""
    import transformers as hf  # here because it takes seconds

    torch.manual_seed(seed)
    model, config, sizes = MODELS[name]
    built: nn.Module = getattr(hf, model)(getattr(hf, config)(**sizes))
    return built


def data(name: str, seed: int = 0) -> list[Batch]:
    """Batches that the architecture is trained on."""
    if name == "ViT":
        return images(seed)
    if name == "T5":
        pairs = zip(text(seed), text(seed + 100), strict=True)
        return [{"input_ids": one["input_ids"], "labels": other["labels"]} for one, other in pairs]
    return masked_text(seed) if name == "BERT" else text(seed)


def optimizer_for(model: nn.Module, lr: float = 1e-3) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trained = [p for p in model.parameters() if p.requires_grad]
    plain = [p for p in trained if p.dim() < 2 or id(p) in tables]
    others = {id(p) for p in plain}
    groups = [
        {"params": [p for p in trained if id(p) not in others], "weight_decay": 0.1},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=(0.9, 0.95))


def scheduler_for(optimizer: torch.optim.Optimizer, steps: int = STEPS) -> Any:
    """Warm-up over a tenth of the run, then a cosine to a tenth of the peak."""
    import math

    warmup = steps // 10

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = min((step - warmup) / (steps - warmup), 1.0)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def setup(name: str, seed: int = 0) -> dict[str, Any]:
    """Return the healthy objects of a run, as arguments of `trimtab.check`."""
    model = build(name, seed)
    optimizer = optimizer_for(model)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler_for(optimizer),
        "loader": data(name, seed),
        "steps": STEPS,
        "clip_norm": 1.0,
    }
