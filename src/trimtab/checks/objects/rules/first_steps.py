"""Rules on the first step: whether it runs, what its loss is, which parameters get a gradient."""

import math

import torch
from torch import nn

from trimtab.checks.objects.measure.measurements import FirstAttempt
from trimtab.checks.objects.measure.passes import BatchPass
from trimtab.checks.rule import Fault, Level, error, listed
from trimtab.live.measure.sites import find_blocks

LOSS_ABOVE, LOSS_FAR_ABOVE = 1.0, 5.0
"""Nats over ln V. Logits of deviation s cost about s^2 / 2: 1 nat is s = 1.4, 5 nats s = 3.2, with
which the model is sure of itself before it has seen a token."""

LOSS_BELOW = 0.5
"""Nats under ln V. A fresh model knows nothing; a batch with few distinct targets varies by
less."""


@error(
    "PF001",
    "The first step does not run, or its loss is not finite",
    source="follows from the definition of a step",
    cannot_see="batches after the first, and rows and tokens beyond the cut of the first",
)
def first_step(attempt: FirstAttempt) -> Fault | str:
    """Nothing can be trained from here; each later check needs this step."""
    if attempt.result is None:
        fix = "run loss(model, batch).backward() by hand with the first batch of the loader"
        return Fault(attempt.error, how=fix)
    found = attempt.result
    bad = [
        name
        for name, gradient in found.gradients.items()
        if gradient is not None and not bool(torch.isfinite(gradient).all())
    ]
    if not math.isfinite(found.loss) or bad:
        where = f"; gradients not finite: {listed(bad)}" if bad else ""
        fix = "look for log 0, 0/0, a fully masked row, targets that are all ignored"
        return Fault(f"the first loss is {found.loss}{where}", how=fix)
    return f"first loss {found.loss:.4g}, all gradients finite"


@error(
    "PF002",
    "The first loss is not that of a guess",
    source="Karpathy 2019, A Recipe for Training Neural Networks: verify the loss at init; the "
    "thresholds follow from the deviation of the logits",
    cannot_see="losses other than cross-entropy, and weights that were trained before",
)
def first_loss(fresh_pass: BatchPass) -> Fault | str:
    """A fresh model should give each of V classes the same chance, a loss of ln V; above it the
    first steps only undo the init, below it the model sees its targets."""
    guess = math.log(fresh_pass.num_classes)
    what = f"first loss {fresh_pass.loss:.3f}, ln {fresh_pass.num_classes:,} is {guess:.3f}"
    apart = fresh_pass.loss - guess
    if apart > LOSS_ABOVE:
        level = Level.ERROR if apart > LOSS_FAR_ABOVE else Level.WARNING
        return Fault(
            what, how="initialise the output layer smaller: std 0.02, or 1/sqrt(width)", level=level
        )
    if apart < -LOSS_BELOW:
        fix = "look for targets among the inputs, a divided loss, or pass pretrained=True"
        return Fault(what, how=fix)
    return what


@error(
    "PF012",
    "Parameters get no gradient",
    source="F19 of the catalogue",
    cannot_see="parameters that later batches use, such as experts that no token chose",
)
def no_gradient(first_pass: BatchPass, model: nn.Module) -> Fault | str:
    """What gets no gradient is never trained: a detach, a no_grad, a branch whose output is not
    used."""
    found = first_pass.gradients
    without = [name for name, gradient in found.items() if _is_zero(gradient)]
    # An adapter starts with B = 0, so its A gets zeros until B has moved.
    starts = [n for n in without if not _is_zero(found.get(n.replace("lora_A", "lora_B")))]
    without = [name for name in without if name not in starts]
    blocks = [name for name, _ in find_blocks(model)]
    trained = first_pass.gradients.keys()
    dead = [
        block
        for block in blocks
        if (own := {n for n in trained if n.startswith(f"{block}.")}) and own <= set(without)
    ]
    fix = "look for detach, no_grad, or a module whose output is not used"
    if dead:
        return Fault(f"no gradient in the whole of {listed(dead)}", how=fix)
    if without:
        return Fault(f"no gradient, or only zeros: {listed(without)}", how=fix, level=Level.WARNING)
    return f"all {len(trained)} trained parameters get a gradient"


def _is_zero(gradient: torch.Tensor | None) -> bool:
    return gradient is None or not bool((gradient != 0).any())
