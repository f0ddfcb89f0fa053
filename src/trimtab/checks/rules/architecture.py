"""Rules on the model: its norms, its start, what bounds its logits; adapters and packed texts."""

import math
from typing import Any

from trimtab.checks.plan import NormPlace
from trimtab.checks.rule import Fault, Shown, advice, amount, brief, error, warning

DEEP_POST_NORM = 12
"""Layers. The lab's 12-layer post-norm model never leaves the entropy of single tokens."""

LARGE_INIT, ABSURD_INIT = 3.0, 10.0
"""Times sqrt(1 / (3 width)). BLOOM 104B could not be trained at 3.7; OLMo 2 13B was at 2.5. The lab
learns slowly at 4 (0.3 at width 64) and starts far above ln(vocabulary) at 14."""

DEEP_UNSCALED = 24
"""Layers from which published models scale the init of what enters the residual stream."""


def _wide_std(width: int) -> float:
    """Return the init deviation that Megatron-Turing NLG and BLOOM used for a width."""
    return math.sqrt(1 / (3 * width))


@warning(
    "TT060",
    "Post-norm in a deep model",
    source="Xiong et al. 2020; GPT-2 moved to pre-norm",
    shown=Shown.LAB,
)
def deep_post_norm(norm: NormPlace, layers: int) -> Fault | None:
    """Every norm on the residual stream shrinks the gradient on its way down, and the lowest layers
    of a deep stack get next to none of it."""
    if norm is not NormPlace.POST or layers < DEEP_POST_NORM:
        return None
    return Fault(f"{layers} layers with post-norm", {"norm": NormPlace.PRE})


@warning(
    "TT061",
    "The initial weights are large for the width",
    source="BLOOM: 104B with 0.02 at width 11,600 did not get past its first thousands of steps",
)
def large_init(init_std: float, width: int) -> Fault | None:
    """Activations and gradients grow with std times the root of the width, so a deviation that is
    right for a narrow model is too large for a wide one."""
    ratio = init_std / _wide_std(width)
    if not LARGE_INIT < ratio <= ABSURD_INIT:
        return None
    return Fault(
        f"init std {brief(init_std)} at width {width:,} is {ratio:.1f} times sqrt(1 / (3 width))",
        {"init_std": float(f"{_wide_std(width):.2g}")},
    )


@error(
    "TT062",
    "The initial weights are absurdly large",
    source="follows from the softmax: logits of deviation s cost about s^2 / 2 nats above guessing",
    shown=Shown.LAB,
)
def absurd_init(init_std: float, width: int) -> Fault | None:
    """The first logits are so large that the loss starts far above that of guessing, and the run
    spends its warm-up coming back to where it should have begun."""
    ratio = init_std / _wide_std(width)
    if ratio <= ABSURD_INIT:
        return None
    return Fault(
        f"init std {brief(init_std)} at width {width:,} is {ratio:.0f} times sqrt(1 / (3 width))",
        {"init_std": min(0.02, float(f"{_wide_std(width):.2g}"))},
    )


@advice(
    "TT063",
    "The init is not scaled by the depth",
    source="GPT-2; OPT scales by 1 / sqrt(2 L) too; OLMo 2 trained without it",
)
def unscaled_depth(depth_scaled_init: bool, layers: int) -> Fault | None:
    """Every layer adds to the residual stream; without a factor 1 / sqrt(2 layers) its variance
    grows with the depth before the first step."""
    if depth_scaled_init or layers < DEEP_UNSCALED:
        return None
    return Fault(
        f"{layers} layers write into the residual stream at full size", {"depth_scaled_init": True}
    )


@advice(
    "TT064",
    "No QK-norm in a large model",
    source="ViT-22B, Chameleon, OLMo 2; Marin 32B spiked for 80,000 steps until QK-norm; Llama "
    "has none",
    only={"large": True},
)
def no_qk_norm(qk_norm: bool, model_size: float) -> Fault | None:
    """Nothing bounds the product of queries and keys; when attention logits run away, heads look at
    one token only and gradients through them vanish or explode."""
    if qk_norm:
        return None
    return Fault(
        f"{amount(model_size)} parameters without QK-norm; if you keep it so, log the largest "
        "attention logit",
        {"qk_norm": True},
    )


@advice(
    "TT065",
    "No z-loss in a large model",
    source="PaLM 1e-4, OLMo 2 1e-5; small-scale proxies (arXiv 2309.14322)",
    only={"large": True},
)
def no_z_loss(z_loss: float, model_size: float) -> Fault | None:
    """The loss does not see a constant added to all logits, so they drift until their format or the
    softmax feels it."""
    if z_loss > 0:
        return None
    return Fault(f"{amount(model_size)} parameters without z-loss", {"z_loss": 1e-5})


@advice(
    "TT066",
    "Nothing normalises the embedding of a large model",
    source="BLOOM; Takase et al. 2023 (Spike No More); Megatron-LM's --embedding-init-method-std",
    only={"large": True},
)
def bare_embedding(embedding_norm: bool, model_size: float) -> Fault | None:
    """Embeddings start small against what the layers add, so the gradients of the first layers are
    large and carry every rare token into the residual stream."""
    if embedding_norm:
        return None
    return Fault(
        f"{amount(model_size)} parameters without a norm after the embedding",
        {"embedding_norm": True},
    )


@warning(
    "TT067",
    "The muP base is wider than the model",
    source="Yang et al. 2022: tune narrow, train wide",
    only={"mup": True},
)
def inverted_mup(mup_base_width: int, width: int) -> Fault | None:
    """muP divides the rate of hidden matrices by width / base, so a base above the width multiplies
    it instead."""
    if mup_base_width <= width:
        return None
    return Fault(
        f"base width {mup_base_width:,} for a model of width {width:,}: hidden matrices train at "
        f"{mup_base_width / width:.2g} times the rate",
        {"mup_base_width": min(256, width)},
    )


@warning(
    "TT068",
    "Nothing balances the experts",
    source="Switch Transformer (Fedus et al. 2021) uses 1e-2; Megatron-LM's default is 0",
    only={"mixture": True},
)
def unbalanced_experts(
    experts: int, balance_loss: float, balance_bias: bool | None = None
) -> Fault | None:
    """Experts that are chosen more often learn faster and are chosen still more, until a few of
    them do all the work."""
    if balance_loss > 0 or balance_bias:
        return None
    return Fault(f"{experts} experts and a balancing loss of weight 0", {"balance_loss": 1e-2})


TUNED: dict[str, Any] = {"from_scratch": False}

MAX_REACH, MAX_SCALE = 1.6e-2, 64.0
"""Rate times alpha / r, and alpha / r alone. The highest published product is that of rank 1, alpha
32 at 5e-4 (Schulman et al. 2025); the LoRA paper has 8 at 2e-4, QLoRA 0.25 at 2e-4. The second is
chosen: twice the scale of that rank 1."""

MIN_ADAPTER_LR = 5e-5
"""Under the rates of published adapters, 1e-4 to 5e-4. Chosen."""


@error(
    "TT100",
    "The adapter is scaled too far up",
    source="Hu et al. 2021 (LoRA), Dettmers et al. 2023 (QLoRA), Schulman et al. 2025",
    only=TUNED,
)
def adapter_scale(lora_rank: int, lora_alpha: float, lr: float) -> Fault | None:
    """The output of an adapter is multiplied by alpha / r, so its first steps already drown what
    the frozen weights say."""
    scale = lora_alpha / lora_rank
    if scale <= MAX_SCALE and lr * scale <= MAX_REACH:
        return None
    alpha = 2.0 * lora_rank
    return Fault(
        f"alpha {brief(lora_alpha)} / r {lora_rank} is {brief(scale)}, at a rate of {brief(lr)}; "
        "published runs have 0.25 to 8 at 2e-4",
        {"lora_alpha": alpha} if lr * 2 <= MAX_REACH else {"lora_alpha": alpha, "lr": 2e-4},
    )


@advice(
    "TT101",
    "The adapter trains at a rate of full fine-tuning",
    source="Schulman et al. 2025: LoRA needs ten times the rate; the TRL docs give 1e-4 and more",
    only=TUNED,
)
def adapter_rate(lora_rank: int, lr: float) -> Fault | None:
    """Half of an adapter starts at zero and the other half moves nothing until then, so at the
    rates of whole models it hardly leaves the start."""
    if lr >= MIN_ADAPTER_LR:
        return None
    return Fault(f"lr {brief(lr)} with an adapter of rank {lora_rank}", {"lr": 2e-4})


@warning(
    "TT102",
    "Packed texts see each other",
    source="TRL: packing strategy `wrapped`; axolotl: no decontamination without flash attention",
    only={**TUNED, "packing": True},
)
def packing_leak(masks_packed: bool) -> Fault | None:
    """Attention reaches from one text of a packed row into those before it, so answers are learnt
    from the conversations of others."""
    if masks_packed:
        return None
    return Fault("texts are packed into rows without a mask between them", {"masks_packed": True})
