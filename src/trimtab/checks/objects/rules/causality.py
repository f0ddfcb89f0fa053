"""Checks on labels, and on what a position may see."""

from trimtab.checks.objects.measure.passes import LabelShift
from trimtab.checks.rule import Fault, Level, rule

LEAK = 1e-3
"""Deviations of the logits. Rounding of fp32 gives 1e-6; a leak through one layer 1e-2 and more."""


@rule(
    "PF060",
    Level.ERROR,
    "Labels are not shifted by one",
    mechanism="Without a shift the model copies its input and the loss falls to 0; shifted twice, "
    "by the data and by the model, it learns to skip a token.",
    source="the definition of next-token prediction; transformers shifts labels itself",
    cannot_see="losses other than cross_entropy and nll_loss; targets that are not tokens",
)
def shifted_once(label_shift: LabelShift) -> Fault | str:
    """Compare targets with the tokens of the batch."""
    if label_shift.places == 1:
        return "targets are the next tokens"
    if label_shift.places == 0:
        return Fault("targets are the tokens themselves", how="shift the labels by one")
    return Fault(
        f"targets are {label_shift.places} tokens ahead",
        how="shift labels once: in the data, or in the model",
    )


@rule(
    "PF061",
    Level.ERROR,
    "A position sees the future",
    mechanism="The model reads off what it should predict: the loss is too good to be true, and "
    "nothing of it is there when text is generated.",
    source="the definition of a causal model; rounding is 1e-6 of the logits' deviation",
    cannot_see="leaks between rows of a batch, and tokens beyond the cut of the batch",
)
def causal(future_leak: float) -> Fault | str:
    """Change the second half of the tokens and look at the first half of the logits."""
    what = f"past logits change by {future_leak:.2g} of their deviation with future tokens"
    if not future_leak <= LEAK:
        fix = "mask attention with is_causal=True; pad convolutions on the left only"
        return Fault(what, how=fix)
    return what
