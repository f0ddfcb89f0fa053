"""Well-known architectures of `transformers`, small and with random weights, ready to train."""

from collections.abc import Callable
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


def _decoder(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2 * LENGTH,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def build(name: str, seed: int = 0) -> nn.Module:
    """Return a small model of an architecture, initialised as `transformers` does."""
    import transformers as hf

    torch.manual_seed(seed)
    makers: dict[str, Callable[[], nn.Module]] = {
        "Llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_decoder())),
        "Qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_decoder())),
        "Qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_decoder(head_dim=16))),
        "Mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_decoder(head_dim=16))),
        "Mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**_decoder(num_local_experts=4, head_dim=16))
        ),
        "Gemma 2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_decoder(head_dim=16))),
        "OLMo 2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**_decoder())),
        "Phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**_decoder(num_key_value_heads=4))),
        "GPT-2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=VOCAB, n_positions=2 * LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=4
            )
        ),
        "Mamba": lambda: hf.MambaForCausalLM(
            hf.MambaConfig(
                vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8
            )
        ),
        "T5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=VOCAB,
                d_model=WIDTH,
                d_kv=16,
                d_ff=2 * WIDTH,
                num_layers=LAYERS,
                num_heads=4,
                decoder_start_token_id=0,
            )
        ),
        "BERT": lambda: hf.BertForMaskedLM(
            hf.BertConfig(
                vocab_size=VOCAB,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                intermediate_size=2 * WIDTH,
            )
        ),
        "ViT": lambda: hf.ViTForImageClassification(
            hf.ViTConfig(
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                intermediate_size=2 * WIDTH,
                image_size=32,
                patch_size=8,
                num_labels=10,
            )
        ),
    }
    return makers[name]()


NAMES = (
    "Llama",
    "GPT-2",
    "Qwen2",
    "Qwen3",
    "Mixtral",
    "Gemma 2",
    "OLMo 2",
    "Mamba",
    "ViT",
    "T5",
    "BERT",
    "Phi",
    "Mistral",
)
"""Every architecture that `build` knows."""


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
