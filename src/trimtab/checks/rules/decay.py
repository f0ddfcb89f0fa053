"""Rules on weight decay: how strong, of which kind, and on what."""

import math

from trimtab.checks.rule import ADAM, Change, Fault, Level, Shown, rule
from trimtab.checks.wording import amount, number

HIGHEST_DECAY, LOWEST_DECAY = 0.5, 0.01
"""Stability guides: over 0.5 a model cannot fit, under 0.01 its weights drift. GPT-NeoX and SmolLM
trained with 0.01."""


@rule(
    "TT006",
    Level.WARNING,
    "Weight decay is too high",
    mechanism="Weights are pulled to zero faster than gradients can hold them, and the loss ends "
    "on a plateau.",
    source="stability guides: over 0.5 a model cannot fit its data",
)
def high_decay(weight_decay: float, lr: float | None = None) -> Fault | None:
    """Look for a decay that wins over the gradients."""
    if weight_decay <= HIGHEST_DECAY:
        return None
    what = f"weight decay is {number(weight_decay)}"
    if lr:
        half_life = math.log(2) / (lr * weight_decay)
        what += f": at the peak rate a weight loses half of itself in {amount(half_life)} steps"
    return Fault(what, (Change("weight_decay", 0.1),))


@rule(
    "TT007",
    Level.ADVICE,
    "There is next to no weight decay",
    mechanism="Weights drift to large values over a long run, attention saturates and gradients "
    "flow worse; it does not show in the first thousands of steps.",
    source="stability guides: under 0.01",
    only={"from_scratch": True},
)
def low_decay(weight_decay: float) -> Fault | None:
    """Look for a decay that does nothing."""
    if weight_decay >= LOWEST_DECAY:
        return None
    return Fault(
        f"weight decay is {number(weight_decay)}; pretraining runs use 0.1",
        (Change("weight_decay", 0.1),),
    )


@rule(
    "TT008",
    Level.ADVICE,
    "Norms and biases are decayed",
    mechanism="A gain has no reason to be near zero, and decay pulls it there.",
    source="Megatron-LM and HF leave them out; OLMo 2 decays them",
)
def decayed_norms(decay_norms: bool, weight_decay: float) -> Fault | None:
    """Look at what the decay is applied to."""
    if not decay_norms or weight_decay == 0:
        return None
    return Fault(
        f"weight decay {number(weight_decay)} also pulls on norms and biases",
        (Change("decay_norms", False),),
    )


@rule(
    "TT009",
    Level.ADVICE,
    "Embeddings are decayed",
    mechanism="The row of a rare token shrinks at every step in which it does not occur, and the "
    "first block then sees inputs of very unequal size.",
    source="OLMo 2: spike score 0.16 with, 0.092 without",
)
def decayed_embeddings(decay_embeddings: bool, weight_decay: float) -> Fault | None:
    """Look at what the decay is applied to."""
    if not decay_embeddings or weight_decay == 0:
        return None
    return Fault(
        f"weight decay {number(weight_decay)} also pulls on embeddings",
        (Change("decay_embeddings", False),),
    )


@rule(
    "TT010",
    Level.WARNING,
    "Adam's decay is not decoupled",
    mechanism="Decay that is part of the gradient is divided by the root of the second moment, so "
    "weights with large gradients are hardly decayed at all.",
    source="Loshchilov and Hutter 2019 (AdamW)",
    only=ADAM,
    shown=Shown.LAB,
)
def coupled_decay(decoupled_decay: bool, weight_decay: float) -> Fault | None:
    """Look for L2 in place of decay."""
    if decoupled_decay or weight_decay == 0:
        return None
    return Fault(
        f"weight decay {number(weight_decay)} is added to the gradient (Adam with L2)",
        (Change("decoupled_decay", True),),
    )
