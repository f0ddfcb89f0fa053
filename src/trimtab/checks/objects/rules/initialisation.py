"""Rules on the weights as they are made: the first step, its loss, the std of each weight."""

import math
import re
from collections import defaultdict

import torch
from torch import nn

from trimtab.checks.objects.measure.measurements import FirstAttempt, named_trained
from trimtab.checks.objects.measure.passes import BatchPass
from trimtab.checks.rule import Fault, Level, advice, brief, error, listed
from trimtab.live.measure.roles import role_of
from trimtab.live.measure.sites import find_blocks

LOSS_ABOVE, LOSS_FAR_ABOVE = 1.0, 5.0
"""Nats over ln V. Logits of deviation s cost about s^2 / 2: 1 nat is s = 1.4, 5 nats s = 3.2, with
which the model is sure of itself before it has seen a token."""

LOSS_BELOW = 0.5
"""Nats under ln V. A fresh model knows nothing; a batch with few distinct targets varies by
less."""

SMALL, LARGE = 0.1, 3.0
"""Times the smallest and the largest std of the rules."""

CONSTANT = 1e-5
"""Of the mean: rounding gives equal values a std of 1e-7 of it."""

SIBLING = 2.0
"""Ratio to both neighbours: depth-scaled rules change by at most 1.41 from one layer to the
next."""

DEEP = 12
"""Layers from which the residual sum matters: sqrt(2 * 12) = 4.9 times its first term."""

_RESIDUAL = re.compile(r"(?:o_proj|out_proj|c_proj|down_proj|wo|w2|fc2|dense_4h_to_h)\.weight$")
_INDEX = re.compile(r"\.(\d+)\.")


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
    "PF003",
    "The std of a weight fits no rule",
    source="0.02 (GPT-2), sqrt(1/(3d)) (torch's Linear), sqrt(2/(5d)) (Nguyen and Salazar 2019), "
    "1/sqrt(d), sqrt(2/d) (He et al. 2015), sqrt(2/(d_in + d_out)) (Glorot and Bengio 2010), each "
    "over sqrt(2L) for residual outputs; 1 for embeddings (torch)",
    cannot_see="which rule was meant: a std within a factor of the range of the rules passes",
)
def weight_std(fresh_model: nn.Module) -> Fault | str:
    """A weight that starts too large saturates what follows it; one that is too small, or constant,
    passes on no signal and learns the same in every unit."""
    layers = max(len(find_blocks(fresh_model)), 1)
    large, small, constant = [], [], []
    weights = [(n, p) for n, p in named_trained(fresh_model).items() if is_matrix(p)]
    tables = {id(m.weight) for m in fresh_model.modules() if isinstance(m, nn.Embedding)}
    for name, weight in weights:
        std = _std(weight)
        is_table = id(weight) in tables or role_of(name) == "embedding" or "position" in name
        low, high = std_range(weight, layers, is_table=is_table)
        mean = abs(float(weight.detach().float().mean()))
        if std <= CONSTANT * mean or not std:
            # Zero is an init of its own (residual outputs, muP heads); any other constant is none.
            if mean:
                constant.append(name)
        elif not std <= LARGE * high:
            large.append(f"{name} (std {brief(std)}, rules up to {brief(high)})")
        elif std < SMALL * low:
            small.append(f"{name} (std {brief(std)}, rules from {brief(low)} on)")
    if large or constant:
        parts = [f"too large: {listed(large)}"] if large else []
        parts += [f"constant: {listed(constant)}"] if constant else []
        return Fault("; ".join(parts), how="initialise with normal_(std=0.02)")
    if small:
        return Fault(
            f"too small: {listed(small)}", how="use normal_(std=0.02)", level=Level.WARNING
        )
    return f"{len(weights)} matrices within the range of the rules"


@error(
    "PF004",
    "A layer is initialised unlike its neighbours",
    source="depth-scaled rules change by at most sqrt(2) from one layer to the next",
    cannot_see="layers that are not numbered in their names",
)
def siblings(fresh_model: nn.Module) -> Fault | str:
    """One layer that an init function missed trains at a different speed from all others."""
    rows: dict[str, dict[int, tuple[str, float]]] = defaultdict(dict)
    for name, weight in named_trained(fresh_model).items():
        match = _INDEX.search(name)
        if match and is_matrix(weight):
            key = name[: match.start()] + ".*." + name[match.end() :]
            rows[key][int(match[1])] = (name, _std(weight))
    odd = []
    for layers in rows.values():
        ordered = [layers[index] for index in sorted(layers)]
        if len(ordered) < 3:
            continue
        for at, (name, std) in enumerate(ordered):
            near = [
                ordered[i][1] for i in (at - 2, at - 1, at + 1, at + 2) if 0 <= i < len(ordered)
            ]
            closest = near[1:3] if len(near) == 4 else near[:2] if at == 0 else near[-2:]
            ratios = [_ratio(std, other) for other in closest]
            is_alone = len(closest) < 2 or _ratio(closest[0], closest[1]) < SIBLING
            if min(ratios) > SIBLING and is_alone:
                odd.append(f"{name} (std {brief(std)}, neighbours {brief(closest[0])})")
    if odd:
        return Fault(listed(odd), how="apply the same init to every layer")
    return f"{len(rows)} kinds of matrices agree over the layers"


@advice(
    "PF005",
    "Residual outputs are not scaled with depth",
    source="GPT-2 (Radford et al. 2019); Llama and Qwen in transformers train without it",
    cannot_see="factors that are applied in the forward pass, and outputs under other names",
)
def depth_scaled(fresh_model: nn.Module) -> Fault | str:
    """Each layer adds twice to the residual stream; without a factor of 1/sqrt(2L) its variance
    grows with depth, and the last layers hardly change it."""
    layers = len(find_blocks(fresh_model))
    inside = {n: p for n, p in named_trained(fresh_model).items() if _INDEX.search(n)}
    matrices = {n: _std(p) for n, p in inside.items() if is_matrix(p)}
    outputs = [std for name, std in matrices.items() if _RESIDUAL.search(name)]
    others = [std for name, std in matrices.items() if not _RESIDUAL.search(name)]
    if not outputs or not others:
        return "no residual outputs recognised by name"
    share = (sum(outputs) / len(outputs)) / max(sum(others) / len(others), 1e-30)
    what = f"{layers} layers; std of residual outputs is {share:.2f} times that of other matrices"
    if layers >= DEEP and share > 0.7:
        fix = f"divide the init of attention and MLP outputs by sqrt(2 * {layers})"
        return Fault(what, how=fix)
    return what


def is_matrix(weight: torch.Tensor) -> bool:
    """Return whether rules on the std hold for a parameter."""
    return weight.dim() >= 2 and min(weight.shape[-2:]) > 1 and weight.is_floating_point()


def std_range(weight: torch.Tensor, layers: int, *, is_table: bool) -> tuple[float, float]:
    # Convolutions: channels times the kernel; experts are stacked in the first dimension.
    fans = sorted(weight.shape[-2:]) if weight.dim() < 4 else [weight[0].numel(), len(weight)]
    low = min(0.02, math.sqrt(1 / (3 * max(fans)))) / math.sqrt(2 * layers)
    return low, max(0.02, math.sqrt(2 / min(fans)), 1.0 if is_table else 0.0)


def _std(weight: torch.Tensor) -> float:
    return float(weight.detach().float().std())


def _ratio(one: float, other: float) -> float:
    low, high = sorted((abs(one), abs(other)))
    if high == 0:
        return 1.0
    return high / low if low else math.inf
