"""Rules on signals by depth: activations, gradients, dead units, norms, attention."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from trimtab.checks.objects.measure.passes import BatchPass
from trimtab.checks.objects.measure.training import ShortRun
from trimtab.checks.rule import Fault, Level, NotMeasured, error, listed, warning
from trimtab.live.measure.sites import find_blocks

DEPTH_RATIO, DEPTH_RATIO_BAD = 30.0, 1000.0
"""Of block outputs, largest to smallest. A sum of 2L independent terms grows by sqrt(2L): 14 for
100 layers. Without norms and with a wrong gain g it grows by g^L."""

GRADIENT_RATIO, GRADIENT_RATIO_BAD = 100.0, 1e4
"""Of gradients per block. 13 healthy architectures have at most 3.3 (benchmarks/RESULTS.md)."""

GROWTH, GROWTH_BAD = 10.0, 100.0
"""Of a block's output over ten steps, from its first size or from 1, the size of what a norm puts
out: a residual stream of std 0.02 grows to it in every healthy run. The detectors of a live run
take a factor of 10 for a jump."""

DEAD, DEAD_BAD = 0.5, 0.95
"""Share of the units of a rectifier that are 0 for every row: a fresh one has next to none."""

CONSTANT = 1e-6
"""Largest variance over eps of inputs that are constant. Norms after a sublayer of a narrow OLMo 2
see little variance at init and are healthy: a warning (benchmarks/RESULTS.md)."""

LOW_ENTROPY = 0.1
"""Of an even look. Zhai et al. 2023: entropy collapse goes with divergence."""

LARGE_LOGIT = 100.0
"""Kimi K2 (arXiv 2507.20534) clips attention logits at 100."""


@warning(
    "PF010",
    "Activations explode or vanish with depth",
    source="sqrt(2L) for a residual stream (GPT-2); He et al. 2015 for g^L without norms",
    cannot_see="layers that are not in the model's longest list of blocks",
)
def activations(fresh_pass: BatchPass) -> Fault | str:
    """The last layers see numbers that no longer depend on the input, or that no format holds."""
    return _by_depth(fresh_pass.trace.block_rms, "block outputs", DEPTH_RATIO, DEPTH_RATIO_BAD)


@warning(
    "PF011",
    "Gradients explode or vanish with depth",
    source="Glorot and Bengio 2010; 13 healthy architectures have a ratio of at most 3.3",
    cannot_see="layers that are not in the model's longest list of blocks",
)
def gradients(fresh_pass: BatchPass, model: nn.Module) -> Fault | str:
    """Layers with tiny gradients are not trained, or only by Adam's amplified noise; layers with
    huge ones use up the whole clip threshold."""
    return _by_depth(
        _block_gradients(fresh_pass, model), "gradients", GRADIENT_RATIO, GRADIENT_RATIO_BAD
    )


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


@warning(
    "PF013",
    "Units are dead",
    source="Lu et al. 2019, Dying ReLU; a fresh unit is 0 for all of n rows with a chance of 2^-n",
    cannot_see="activations other than ReLU, which do not die exactly",
)
def dead_units(first_pass: BatchPass) -> Fault | str:
    """A rectifier that is 0 for every input passes no gradient back and stays 0."""
    dead = first_pass.trace.dead
    if not dead:
        raise NotMeasured("no rectifier is called")
    bad = [f"{name} ({100 * share:.0f} %)" for name, share in dead.items() if share > DEAD]
    if not bad:
        return f"{len(dead)} rectifiers, at most {100 * max(dead.values()):.0f} % dead"
    level = Level.ERROR if max(dead.values()) > DEAD_BAD else Level.WARNING
    return Fault(
        f"dead units: {listed(bad)}", how="lower the rate, or raise the biases to 0", level=level
    )


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


@warning(
    "PF015",
    "A norm gets inputs without variance",
    source="the definition of LayerNorm and RMSNorm",
    cannot_see="norms that are not modules with norm in the name of their class",
)
def norm_inputs(first_pass: BatchPass) -> Fault | str:
    """Where the variance is below eps the norm divides by eps: rounding noise becomes the signal,
    or its gradient is 1/sqrt(eps) times too large."""
    norms = first_pass.trace.norms
    if not norms:
        raise NotMeasured("the model has no norms")
    bad = sorted((n for n in norms if n.share > 0), key=lambda n: -n.share)
    if not bad:
        lowest = min(norms, key=lambda norm: norm.lowest)
        what = f"{len(norms)} norms, variance at least {lowest.lowest:.3g} times eps"
        return f"{what} ({lowest.where})"
    names = [f"{norm.where} ({100 * norm.share:.0f} % of rows)" for norm in bad]
    # Some rows of zeros are padding; a norm that sees nothing but constants is broken.
    level = Level.ERROR if any(norm.highest < CONSTANT for norm in bad) else Level.WARNING
    return Fault(
        f"variance below eps: {listed(names)}",
        how="raise the std of what comes before",
        level=level,
    )


@error(
    "PF016",
    "Attention looks at one token only",
    source="Zhai et al. 2023 (entropy collapse); Kimi K2 clips logits at 100",
    cannot_see="attention in fused kernels other than scaled_dot_product_attention; sequences "
    "after the first, queries beyond 64",
)
def attention(first_pass: BatchPass) -> Fault | str:
    """A saturated softmax has no gradient, and the head cannot learn where to look."""
    calls = first_pass.trace.attentions
    if not calls:
        raise NotMeasured("no attention call is seen")
    known = [call for call in calls if not math.isnan(call.lowest_entropy)]
    largest = max(calls, key=lambda call: call.largest_logit)
    what = f"{len(calls)} attention calls, largest logit {largest.largest_logit:.3g}"
    fix = "divide q k by sqrt(head size), lower the std of q and k, or normalise both (QK-norm)"
    if known:
        least = min(known, key=lambda call: call.lowest_entropy)
        what += f", lowest entropy {100 * least.lowest_entropy:.0f} % of an even look"
        if least.lowest_entropy < LOW_ENTROPY:
            return Fault(f"{what} ({least.where})", how=fix)
    if largest.largest_logit > LARGE_LOGIT:
        return Fault(f"{what} ({largest.where})", how=fix)
    return what


@warning(
    "PF017",
    "A query of attention is masked completely",
    source="F12 of the catalogue",
    cannot_see="sequences after the first of the batch",
)
def masked_rows(first_pass: BatchPass) -> Fault | str:
    """A softmax over nothing but -inf is NaN; over nothing but large negative numbers it is an even
    look at what should be hidden."""
    calls = first_pass.trace.attentions
    if not calls:
        raise NotMeasured("no attention call is seen")
    bad = [call for call in calls if call.num_masked_rows]
    if bad:
        what = f"{bad[0].num_masked_rows} queries may look at nothing in {bad[0].where}"
        return Fault(what, how="let every query see itself, also in padding")
    return f"{len(calls)} attention calls, every query sees a key"


def _by_depth(sizes: Mapping[str, float], kind: str, limit: float, bad: float) -> Fault | str:
    if len(sizes) < 2:
        raise NotMeasured("the model has no list of blocks")
    low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    ratio = sizes[high] / sizes[low] if sizes[low] else math.inf
    what = f"{kind} from {sizes[low]:.3g} ({low}) to {sizes[high]:.3g} ({high})"
    if not ratio < limit:
        level = Level.ERROR if not ratio < bad else Level.WARNING
        fix = "use pre-norm, a std from the width, and residual outputs over sqrt(2L)"
        return Fault(f"{what}: {ratio:.3g} times", how=fix, level=level)
    return f"{what}: {ratio:.3g} times over {len(sizes)} blocks"


def _block_gradients(found: BatchPass, model: nn.Module) -> dict[str, float]:
    """Return the root mean square of the gradients of each block's matrices, if it has any."""
    sizes = {}
    for block, _ in find_blocks(model):
        squares, count = 0.0, 0
        for name, gradient in found.gradients.items():
            if name.startswith(f"{block}.") and gradient is not None and gradient.dim() > 1:
                squares += float(torch.linalg.vector_norm(gradient, dtype=torch.float32)) ** 2
                count += gradient.numel()
        if count and squares:  # PF012 reports a block without gradients
            sizes[block] = math.sqrt(squares / count)
    return sizes
