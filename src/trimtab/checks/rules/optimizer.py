"""Rules on the optimizer: moments, epsilon, clipping, height of the learning rate, decay."""

import math

from trimtab.checks.rule import ADAM, Fault, Level, Shown, advice, amount, brief, error, warning
from trimtab.core.rules import Missing

LONGEST_MEMORY_TOKENS = 400e6
"""Tokens that a second moment of published runs averages over at most: 320M (Llama 3 405B, 0.95 at
16M tokens a step). 0.999 at half a million tokens a step is 500M."""

SHORTEST_MEMORY_TOKENS = 100e3
"""Below this, one long document is the whole average; published runs have 2.6M or more (MLPerf)."""

SAFE_BETA2 = 0.95

CLIP_THAT_NEVER_CLIPS = 10.0
"""Times the usual threshold of 1. In 30 public logs the median norm before clipping lies between
0.1 and 5, so this lets pass what is many times a healthy gradient (measured)."""

SWAMPING_EPSILON = 1e-4
"""In the lab 1e-4 and 1e-2 end 0.2 to 0.4 nats above 1e-15 (0.5M parameters, 150 steps)."""

LARGE_EPSILON = 1e-6
"""RoBERTa's. Above it, the gradients of early layers of large models are no longer large against
it; OLMo 2 went from 1e-5 to 1e-8 and gained."""

PUBLISHED_LR_AT_135M = 3e-3
"""SmolLM 135M: the highest published AdamW rate at its size. Falling with the cube root of the
size, the line passes by 8e-4 at 8B (MLPerf) and stays above all other published runs."""

LR_MARGIN = 3.0
"""How far above that line a rate must be to be called too high."""

SMALL_MODEL = 10e6
"""Parameters that are assumed where their number is not known. Chosen: smaller models are toys."""

TOY_BATCH_TOKENS = 16_000
"""Tokens in a step below which a model of unknown size may be a toy, which takes higher rates: 0.03
is best for that of the tutorial, with 1,024 tokens. Source: nanoGPT's smallest model has 16k."""


def _memory(beta2: float) -> float:
    """Steps that a running mean remembers."""
    return 1.0 / (1.0 - beta2)


@warning(
    "TT001",
    "The second moment remembers too much",
    source="GPT-3, Llama and OLMo chose 0.95; Megatron-LM issue 1582 (0.999 spikes, 0.95 does "
    "not); Marek et al. 2025 (the memory counts in tokens)",
    only=ADAM,
)
def long_memory(
    beta2: float, batch_tokens: int | None = None, from_scratch: bool | None = None
) -> Fault | None:
    """A gradient that is suddenly large meets a second moment made of old small ones, which follows
    too slowly to damp the step and the steps after it."""
    if not 0 < beta2 < 1:
        return None
    if batch_tokens is None:
        if beta2 < 0.99 or from_scratch is False:
            return None
        return Fault(
            f"beta2 {brief(beta2)} averages over {amount(_memory(beta2))} steps; pretraining runs "
            "use 0.95 (state batch_size and seq_len for a check in tokens)",
            {"beta2": SAFE_BETA2},
            level=Level.ADVICE,
        )
    tokens = _memory(beta2) * batch_tokens
    if tokens <= LONGEST_MEMORY_TOKENS:
        return None
    return Fault(
        f"beta2 {brief(beta2)} averages over {amount(_memory(beta2))} steps, at "
        f"{amount(batch_tokens)} tokens a step that is {amount(tokens)} tokens; published runs "
        f"stay under {amount(LONGEST_MEMORY_TOKENS)}",
        {"beta2": SAFE_BETA2},
    )


@warning("TT002", "Gradients are not clipped", source="PaLM, Llama 2 and OLMo clip at 1.0")
def no_clipping(
    clip_norm: float, adam: bool | None = None, beta2: float | None = None
) -> Fault | None:
    """Nothing bounds what one bad batch does to the weights and to the moments, which carry it on
    for as long as they remember."""
    if clip_norm > 0:
        return None
    what = "clipping is off"
    if adam and beta2 is not None and 0.98 < beta2 < 1:
        what += (
            f", and beta2 {brief(beta2)} carries a bad gradient for {amount(_memory(beta2))} steps"
        )
    return Fault(what, {"clip_norm": 1.0})


@advice(
    "TT003",
    "The clip threshold is too high to clip anything",
    source="measured: in 30 public logs the median norm is 0.1 to 5; published runs clip at 1.0",
)
def loose_clipping(clip_norm: float) -> Fault | None:
    """A healthy gradient norm lies far below it, so a bad batch may be many times worse than normal
    before it is held back."""
    if clip_norm <= CLIP_THAT_NEVER_CLIPS:
        return None
    return Fault(
        f"clipping at {brief(clip_norm)} lets a gradient pass that is {brief(clip_norm)} times "
        "the usual threshold",
        {"clip_norm": 1.0},
    )


@error(
    "TT004",
    "Adam's epsilon swamps the second moment",
    source="small-scale proxies (arXiv 2309.14322); Molybog et al. 2023",
    only=ADAM,
    shown=Shown.LAB,
)
def huge_epsilon(epsilon: float) -> Fault | None:
    """Where the root of the second moment is small against epsilon, the step is the gradient times
    lr / epsilon, and layers with small gradients hardly move."""
    if epsilon < SWAMPING_EPSILON:
        return None
    return Fault(
        f"epsilon {brief(epsilon)} is larger than most entries of sqrt(v)", {"epsilon": 1e-8}
    )


@advice(
    "TT005",
    "Adam's epsilon is larger than it needs to be",
    source="OLMo 2: 1e-5 to 1e-8 let gradient norms settle sooner; Llama 2 trained with 1e-5",
    only=ADAM,
)
def large_epsilon(epsilon: float) -> Fault | None:
    """In large models the gradients of the early layers come near epsilon, and their updates shrink
    while all others go on."""
    if not LARGE_EPSILON < epsilon < SWAMPING_EPSILON:
        return None
    return Fault(f"epsilon is {brief(epsilon)}", {"epsilon": 1e-8})


@error("TT011", "A setting of the optimizer cannot be right", source="the definition of Adam")
def impossible_values(
    lr: float,
    beta1: float | None = None,
    beta2: float | None = None,
    epsilon: float | None = None,
    weight_decay: float | None = None,
) -> Fault | None:
    """Outside of its range the update is no longer that of the optimizer: it grows without bound,
    stalls or reverses."""
    wrong: dict[str, tuple[float, float]] = {}
    if lr <= 0:
        wrong["lr"] = (lr, 3e-4)
    if beta1 is not None and not 0 <= beta1 < 1:
        wrong["beta1"] = (beta1, 0.9)
    if beta2 is not None and not 0 <= beta2 < 1:
        wrong["beta2"] = (beta2, SAFE_BETA2)
    if epsilon is not None and epsilon < 0:
        wrong["epsilon"] = (epsilon, 1e-8)
    if weight_decay is not None and weight_decay < 0:
        wrong["weight_decay"] = (weight_decay, 0.1)
    if not wrong:
        return None
    what = ", ".join(f"{name} is {brief(value)}" for name, (value, _) in wrong.items())
    return Fault(what, {name: usual for name, (_, usual) in wrong.items()})


@warning(
    "TT012",
    "The peak learning rate is far above that of any published run of this size",
    source="highest published AdamW rates: 3e-3 at 135M (SmolLM), 8e-4 at 8B (MLPerf)",
    only=ADAM,
    shown=Shown.LAB,
)
def high_rate(
    lr: float,
    model_size: float | None = None,
    mup_base_width: int | None = None,
    width: int | None = None,
    batch_tokens: int | None = None,
) -> Fault | Missing | None:
    """Steps overshoot, attention logits grow until heads look at one token only, and the loss
    settles near the entropy of single tokens without a spike to see."""
    if model_size is None:
        is_toy = batch_tokens is not None and batch_tokens < TOY_BATCH_TOKENS
        if mup_base_width is not None or is_toy:
            return Missing(("parameters",))
        published = float(f"{published_rate(SMALL_MODEL):.1g}")
        if lr <= LR_MARGIN * published:
            return Missing(("parameters",))
        return Fault(
            f"lr {brief(lr)}; the highest published rates lie near {brief(published)} at "
            f"{amount(SMALL_MODEL)} parameters, and lower for larger models",
            {"lr": float(f"{PUBLISHED_LR_AT_135M / 10:.0e}")},
        )
    where = ""
    if mup_base_width is not None:
        if width is None:
            return None
        # Under muP the rate is that of the narrow model on which it was tuned; hidden matrices of
        # this one get lr * base / width. Parameters grow with the square of the width.
        model_size *= (mup_base_width / width) ** 2
        where = (
            f" of the muP base (width {mup_base_width:,}; hidden matrices of this model train at "
            f"{brief(lr * mup_base_width / width)})"
        )
    published = published_rate(model_size)
    if lr <= LR_MARGIN * published:
        return None
    return Fault(
        f"lr {brief(lr)} at {amount(model_size)} parameters{where}; the highest published rates "
        f"lie near {brief(published)}",
        {"lr": float(f"{published:.0e}")},
    )


def published_rate(model_size: float) -> float:
    """Return the highest rate that is published for AdamW at this number of parameters."""
    return PUBLISHED_LR_AT_135M * math.pow(model_size / 135e6, -1 / 3)


@warning(
    "TT016",
    "Lion runs at a rate that is meant for Adam",
    source="Chen et al. 2023 (Lion): 3 to 10 times below AdamW's rate, decay as much higher",
    only={"optimizer": "lion"},
)
def lion_rate(lr: float, model_size: float) -> Fault | None:
    """Every element moves by the whole rate at every step, where Adam's average step is a fraction
    of it."""
    published = published_rate(model_size)
    if lr <= published:
        return None
    return Fault(
        f"lr {brief(lr)} at {amount(model_size)} parameters; for AdamW the highest published rates "
        f"lie near {brief(published)}, for Lion 3 to 10 times lower",
        {"lr": float(f"{published / 5:.0e}")},
    )


@advice(
    "TT017",
    "Muon runs without weight decay",
    source="Moonlight (Liu et al. 2025): without decay weights grow until bf16 loses updates",
    only={"optimizer": "muon"},
)
def muon_decay(weight_decay: float) -> Fault | None:
    """Its updates have the same size in every direction however small the gradient is, so nothing
    else bounds the weights over a long run."""
    if weight_decay > 0:
        return None
    return Fault("weight decay is 0", {"weight_decay": 0.1})


@advice(
    "TT018",
    "Adafactor runs without warm-up",
    source="Shazeer and Stern 2018; transformers: without warm-up it is not recommended",
    only={"optimizer": "adafactor"},
)
def adafactor_warmup(lr: float, warmup_steps: int) -> Fault | None:
    """Its second moment is that of the last few gradients at first, and two vectors stand for each
    matrix, so the first steps at the full rate are the wildest."""
    if warmup_steps > 0 or lr <= 0:
        return None
    return Fault(f"the first step is made at {brief(lr)}", {"warmup_steps": 1000})


@warning(
    "TT013",
    "The betas look swapped",
    source="Adam's own condition beta1 < sqrt(beta2); Kingma and Ba 2015",
    only=ADAM,
)
def swapped_betas(beta1: float, beta2: float) -> Fault | None:
    """With a first moment that remembers longer than the second, old gradients are divided by the
    size of new ones, and steps grow when gradients shrink."""
    if not 0 <= beta2 < beta1 < 1:
        return None
    return Fault(
        f"beta1 {brief(beta1)} is above beta2 {brief(beta2)}", {"beta1": 0.9, "beta2": SAFE_BETA2}
    )


@advice(
    "TT014",
    "The second moment remembers too little for so small a batch",
    source="Marek et al. 2025: hold the half-life in tokens; nanoGPT takes 0.99 at 16k tokens a "
    "step",
    only=ADAM,
)
def short_memory(beta2: float, batch_tokens: int) -> Fault | None:
    """Its average covers so few tokens that it follows the noise of single sequences, and the step
    size jumps with it."""
    if not 0 < beta2 <= 0.99:
        return None
    tokens = _memory(beta2) * batch_tokens
    if tokens >= SHORTEST_MEMORY_TOKENS:
        return None
    return Fault(
        f"beta2 {brief(beta2)} averages over {amount(tokens)} tokens only "
        f"({amount(batch_tokens)} a step)",
        {"beta2": 0.99},
    )


@warning(
    "TT015",
    "Micro-batches count alike, however many tokens they have",
    source="transformers issues 34191 and 35204",
)
def mean_of_means(token_weighted_loss: bool, micro_batches: int | None = None) -> Fault | None:
    """A mean of micro-batch means gives the tokens of short or masked micro-batches more weight, so
    loss and gradient depend on how the batch was cut."""
    if token_weighted_loss:
        return None
    parts = f"{micro_batches} micro-batches" if micro_batches else "micro-batches and ranks"
    return Fault(f"the loss is a mean over {parts}, not over tokens", {"token_weighted_loss": True})


HIGHEST_DECAY, LOWEST_DECAY = 0.5, 0.01
"""Stability guides: over 0.5 a model cannot fit, under 0.01 its weights drift. GPT-NeoX and SmolLM
trained with 0.01."""


@warning(
    "TT006",
    "Weight decay is too high",
    source="stability guides: over 0.5 a model cannot fit its data",
)
def high_decay(weight_decay: float, lr: float | None = None) -> Fault | None:
    """Weights are pulled to zero faster than gradients can hold them, and the loss ends on a
    plateau."""
    if weight_decay <= HIGHEST_DECAY:
        return None
    what = f"weight decay is {brief(weight_decay)}"
    if lr:
        half_life = math.log(2) / (lr * weight_decay)
        what += f": at the peak rate a weight loses half of itself in {amount(half_life)} steps"
    return Fault(what, {"weight_decay": 0.1})


@advice(
    "TT007",
    "There is next to no weight decay",
    source="stability guides: under 0.01",
)
def low_decay(
    weight_decay: float, from_scratch: bool | None = None, lora_rank: int | None = None
) -> Fault | None:
    """Weights drift to large values over a long run, attention saturates and gradients flow worse;
    it does not show in the first thousands of steps."""
    is_tuned = from_scratch is False or lora_rank is not None
    is_default = weight_decay == 0 and not from_scratch  # trainers that mostly tune models have 0
    if weight_decay >= LOWEST_DECAY or is_tuned or is_default:
        return None
    return Fault(
        f"weight decay is {brief(weight_decay)}; pretraining runs use 0.1", {"weight_decay": 0.1}
    )


@advice(
    "TT008",
    "Norms and biases are decayed",
    source="Megatron-LM and HF leave them out; OLMo 2 decays them",
)
def decayed_norms(decay_norms: bool, weight_decay: float) -> Fault | None:
    """A gain has no reason to be near zero, and decay pulls it there."""
    if not decay_norms or weight_decay == 0:
        return None
    return Fault(
        f"weight decay {brief(weight_decay)} also pulls on norms and biases", {"decay_norms": False}
    )


@advice("TT009", "Embeddings are decayed", source="OLMo 2: spike score 0.16 with, 0.092 without")
def decayed_embeddings(decay_embeddings: bool, weight_decay: float) -> Fault | None:
    """The row of a rare token shrinks at every step in which it does not occur, and the first block
    then sees inputs of very unequal size."""
    if not decay_embeddings or weight_decay == 0:
        return None
    return Fault(
        f"weight decay {brief(weight_decay)} also pulls on embeddings", {"decay_embeddings": False}
    )


@warning(
    "TT010",
    "Adam's decay is not decoupled",
    source="Loshchilov and Hutter 2019 (AdamW)",
    only=ADAM,
    shown=Shown.LAB,
)
def coupled_decay(decoupled_decay: bool, weight_decay: float) -> Fault | None:
    """Decay that is part of the gradient is divided by the root of the second moment, so weights
    with large gradients are hardly decayed at all."""
    if decoupled_decay or weight_decay == 0:
        return None
    return Fault(
        f"weight decay {brief(weight_decay)} is added to the gradient (Adam with L2)",
        {"decoupled_decay": True},
    )
