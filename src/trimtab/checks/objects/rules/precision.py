"""Rules on rounding: softmax in low precision, bf16 against fp32, lost updates, same bits."""

import math

import torch

from trimtab.checks.objects.measure.passes import BatchPass, Precisions
from trimtab.checks.objects.measure.training import ShortRun
from trimtab.checks.rule import Fault, Level, NotMeasured, error, listed, warning

LOSS_APART, LOSS_FAR_APART = 0.01, 0.05
"""Relative. bf16 rounds to 2^-9 = 0.2 %."""

LOGITS_APART, LOGITS_FAR_APART = 0.1, 0.5
"""Deviations of the logits. 13 healthy architectures stay below 0.02 (benchmarks/RESULTS.md)."""

LOST = 0.5
"""Share of the elements with a gradient that ten steps at the peak rate leave as they are. In bf16
an update below 2^-9 of the weight is rounded away."""


@warning(
    "PF020",
    "A softmax is taken in low precision",
    source="TT047 of `trimtab check`; PaLM, Llama and OLMo take softmax and loss in fp32",
    cannot_see="softmaxes inside fused kernels, which sum up in fp32 themselves",
)
def low_softmax(first_pass: BatchPass) -> Fault | str:
    """bf16 has 8 bits: chances below 1/256 of the largest are lost in the sum, and so are their
    gradients."""
    trace = first_pass.trace
    if not trace.num_softmaxes:
        raise NotMeasured("no softmax is called")
    if trace.low_softmaxes:
        return Fault(
            f"{len(trace.low_softmaxes)} of {trace.num_softmaxes} in low precision: "
            f"{listed(trace.low_softmaxes)}",
            how="call .float() before the softmax, or softmax(..., dtype=torch.float32)",
        )
    return f"{trace.num_softmaxes} softmaxes, none in low precision"


@error(
    "PF021",
    "The model in bf16 is not the model in fp32",
    source="rounding of bf16 is 0.2 %; the logits of 13 healthy architectures differ by at most "
    "0.013 of their deviation (RESULTS.md), the limit is 0.1",
    cannot_see="gradients, and what autocast leaves in fp32",
)
def bf16(precisions: Precisions) -> Fault | str:
    """Some operation of the model does not survive 8 bits: a large sum, a difference of large
    numbers, an exponential."""
    full, low, logits = precisions.full, precisions.low, precisions.logits_apart
    what = f"loss {full:.5g} in fp32, {low:.5g} in bf16"
    if logits is not None:
        what += f"; logits differ by {logits:.2g} of their deviation"
    fix = "keep norms, softmax, rotary angles and the loss in fp32"
    apart, logits = abs(low - full) / max(abs(full), 1e-6), logits or 0.0
    if not (apart <= LOSS_FAR_APART and logits <= LOGITS_FAR_APART):
        return Fault(what, how=fix)
    if not (apart <= LOSS_APART and logits <= LOGITS_APART):
        return Fault(what, how=fix, level=Level.WARNING)
    return what


@warning(
    "PF022",
    "Updates do not change the weights",
    source="F19 of the catalogue; Zamirai et al. 2020 (bf16 weights need master weights or "
    "stochastic rounding)",
    cannot_see="vectors (norms and biases), and schedules that reach 0 after the peak",
)
def lost_updates(short_run: ShortRun) -> Fault | str:
    """A learning rate of 0, or updates below the rounding of the weight's format: the step costs as
    much as any other and nothing is learned."""
    lost = short_run.unchanged
    if not lost:
        raise NotMeasured("no matrix with a gradient is held by an optimizer")
    bad = [f"{name} ({100 * share:.0f} %)" for name, share in lost.items() if share > LOST]
    if bad:
        level = Level.ERROR if min(lost.values()) > LOST else Level.WARNING
        fix = "keep fp32 master weights, or raise the learning rate of this group"
        return Fault(f"elements as they were after ten steps: {listed(bad)}", how=fix, level=level)
    return f"at most {100 * max(lost.values()):.1f} % of a matrix stays as it is"


@warning(
    "PF023",
    "The same seed does not give the same bits",
    source="torch's notes on reproducibility",
    cannot_see="other batches, and kernels that differ only now and then",
)
def same_bits(first_pass: BatchPass, second_pass: BatchPass) -> Fault | str:
    """A failure cannot be replayed, and a resumed run is not the run that was saved."""
    differ = [
        name
        for name, gradient in first_pass.gradients.items()
        if not _equal(gradient, second_pass.gradients[name])
    ]
    is_same_loss = first_pass.loss == second_pass.loss or math.isnan(first_pass.loss)
    if is_same_loss and not differ:
        return f"loss and {len(first_pass.gradients)} gradients have the same bits"
    what = f"losses {first_pass.loss!r} and {second_pass.loss!r}"
    if differ:
        what += f"; gradients differ: {listed(differ)}"
    fix = "draw from torch's seeded generators, and set torch.use_deterministic_algorithms(True)"
    return Fault(what, how=fix)


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other) or bool(torch.isnan(one).any())
