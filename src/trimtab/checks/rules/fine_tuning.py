"""Rules on fine-tuning: how far an adapter reaches, how fast it learns, what packed texts see."""

from typing import Any

from trimtab.checks.rule import Fault, advice, brief, error, warning

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
