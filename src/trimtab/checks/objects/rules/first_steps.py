"""Rules on the first steps: whether they run, what the loss is, who gets a gradient, what grows."""

import math

import torch
from torch import nn

from trimtab.checks.objects.measure.measurements import FirstAttempt
from trimtab.checks.objects.measure.passes import BatchPass
from trimtab.checks.objects.measure.training import ShortRun
from trimtab.checks.rule import Fault, Level, NotMeasured, error, listed
from trimtab.live.measure.sites import find_blocks

LOSS_ABOVE, LOSS_FAR_ABOVE = 1.0, 5.0
"""Nats over ln V. Logits of deviation s cost about s^2 / 2: 1 nat is s = 1.4, 5 nats s = 3.2, with
which the model is sure of itself before it has seen a token."""

LOSS_BELOW = 0.5
"""Nats under ln V. A fresh model knows nothing; a batch with few distinct targets varies by
less."""

GROWTH, GROWTH_BAD = 10.0, 100.0
"""Of a block's output over ten steps, from its first size or from 1, the size of what a norm puts
out: a residual stream of std 0.02 grows to it in every healthy run. The detectors of a live run
take a factor of 10 for a jump."""


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


@error(
    "PF014",
    "Activations blow up in the first ten steps",
    source="a live run's detectors take a factor of 10 for a jump",
    cannot_see="growth that takes longer than ten steps; the steps are made at the peak rate",
)
def after_ten_steps(short_run: ShortRun, first_pass: BatchPass) -> Fault | str:
    """At the peak rate the residual stream grows faster than norms and softmax can absorb."""
    if not all(map(math.isfinite, short_run.losses)):
        what = f"the loss is {short_run.losses[-1]} at step {len(short_run.losses)}"
        return Fault(what, how="lower the learning rate, or warm up")
    before, after = first_pass.trace.block_rms, short_run.trace.block_rms
    ratios = {name: after[name] / max(size, 1.0) for name, size in before.items() if name in after}
    if not ratios:
        raise NotMeasured("the model has no list of blocks")
    name = max(ratios, key=ratios.__getitem__)
    what = f"after ten steps the output of {name} goes from {before[name]:.3g} to {after[name]:.3g}"
    if not ratios[name] < GROWTH:
        level = Level.ERROR if not ratios[name] < GROWTH_BAD else Level.WARNING
        return Fault(what, how="lower the learning rate, or add a norm", level=level)
    return what
