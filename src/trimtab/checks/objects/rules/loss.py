"""Rules on loss and labels: one batch can be learned, micro-batches and ranks add up, labels are
shifted once, and no position sees the future."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trimtab.checks.objects.measure.loader import RankBatches
from trimtab.checks.objects.measure.measurements import MIN_FALL, FirstAttempt
from trimtab.checks.objects.measure.passes import LabelShift, Split, main_loss
from trimtab.checks.objects.measure.training import Overfit
from trimtab.checks.rule import Fault, Level, NotMeasured, error, warning

APART, FAR_APART = 1e-3, 1e-2
"""Relative. Losses in fp32 agree to 1e-6, in bf16 to 4e-3; a sum in the place of a mean is off by
the number of parts."""

FEW_TARGETS = 0.01
"""Share of the targets that count: masked language models train on 15 %, instruction data on some
10 %."""


@error(
    "PF050",
    "One batch cannot be learned",
    source="Karpathy 2019: overfit one batch; the limit of 10 % in 30 steps is a quarter of the "
    "least of 13 healthy architectures (RESULTS.md)",
    cannot_see="whether the model generalises; rows and tokens beyond the cut of the batch",
)
def overfits(overfit: Overfit) -> Fault | str:
    """A model that cannot fit a few sequences by heart cannot learn a corpus: the gradient does not
    reach the weights, or the rate is far off."""
    first, last = overfit.losses[0], overfit.losses[-1]
    what = f"loss {first:.4g} to {last:.4g} in {len(overfit.losses)} steps on one batch"
    if math.isnan(overfit.fall):
        return Fault(what, how="lower the learning rate")
    if overfit.fall < MIN_FALL:
        fix = "look at PF012, PF022 and PF030, and at the labels"
        return Fault(f"{what}, nor at 10 times the rate", how=fix)
    if overfit.lr_factor > 1:
        return Fault(
            f"{what}, at 10 times the peak rate only", how="raise the rate", level=Level.WARNING
        )
    return what


@error(
    "PF051",
    "Micro-batches do not add up to the batch",
    source="F22 of the catalogue; transformers issues 34191 and 35204 (TT015 of `trimtab check`)",
    cannot_see="how the training loop divides: the mean of the losses of micro-batches is assumed",
)
def accumulation(split: Split) -> Fault | str:
    """Loss and gradient depend on how a batch is cut: a sum is taken for a mean, or tokens of short
    rows weigh more."""
    parts = len(split.parts)
    what = f"loss {split.whole:.5g} as one batch, mean {split.mean:.5g} over {parts} micro-batches"
    apart = abs(split.mean - split.whole) / max(abs(split.whole), 1e-6)
    is_uneven = len(set(split.num_targets)) > 1
    if apart <= (APART if is_uneven else FAR_APART):
        return what
    if is_uneven:
        counts = f"{min(split.num_targets)} to {max(split.num_targets)}"
        fix = "divide the summed loss by all targets of the step"
        return Fault(f"{what}; targets per micro-batch: {counts}", how=fix, level=Level.WARNING)
    factor = split.whole / split.mean if split.mean else math.inf
    return Fault(
        f"{what}: a factor of {factor:.3g}",
        how="use reduction='mean', and no operation over the rows of a batch in the loss",
    )


@warning(
    "PF052",
    "Ranks with unequal numbers of targets count alike",
    source="transformers issues 34191 and 35204",
    cannot_see="losses that are already divided by the targets of all ranks",
)
def rank_reduction(ranks: RankBatches) -> Fault | str:
    """DDP averages gradients over ranks, so the tokens of a rank with few targets weigh more."""
    counts = [count for count in ranks.num_targets if count is not None]
    if len(counts) < len(ranks.losses) or not sum(counts):
        return "the number of targets is not known"
    mean = sum(ranks.losses) / len(ranks.losses)
    pairs = zip(ranks.losses, counts, strict=True)
    weighted = sum(loss * count for loss, count in pairs) / sum(counts)
    what = f"mean over ranks {mean:.5g}, over targets {weighted:.5g}"
    if abs(mean - weighted) > APART * max(abs(weighted), 1e-6):
        return Fault(what, how="divide the summed loss by all targets of all ranks")
    return what


@warning(
    "PF053",
    "Next to no target counts",
    source="follows from the mean over targets; masked language models train on 15 % of the tokens",
    cannot_see="batches after the first",
)
def ignored_targets(attempt: FirstAttempt) -> Fault | str:
    """A batch whose targets are all ignored has a loss of NaN, and one with a few of them a
    gradient of noise."""
    if attempt.result is None:
        raise NotMeasured("the first step raised an error")
    call = main_loss(attempt.result.trace)
    total = max(call.targets.numel(), 1)
    share = call.num_targets / total
    what = f"{call.num_targets:,} of {total:,} targets count"
    if share < FEW_TARGETS:
        level = Level.ERROR if not call.num_targets else Level.WARNING
        fix = "mask the prompt only: look at the chat template, the response marker and truncation"
        return Fault(what, how=fix, level=level)
    return what


@warning(
    "PF054",
    "The end of a text is never a target",
    source="TRL issues on endless answers: padding with the end token masks it, and a template of "
    "another model has an end token of its own",
    cannot_see="batches without `labels`, texts that fill their row, batches after the first",
)
def end_token(batches: list[Any], model: nn.Module) -> Fault | str:
    """A model that is never taught to stop writes on until it is cut off."""
    ends = _end_tokens(model)
    labels = [batch.get("labels") for batch in batches if isinstance(batch, Mapping)]
    rows = [row for part in labels if isinstance(part, torch.Tensor) for row in part]
    # A row with targets whose last place is padding has the end of its text.
    whole = [row for row in rows if row.dim() == 1 and bool((row >= 0).any()) and row[-1] < 0]
    if not ends or not whole:
        raise NotMeasured("the config has no eos_token_id" if not ends else "no text ends in a row")
    taught = sum(
        bool(torch.isin(row, torch.tensor(ends, device=row.device)).any()) for row in whole
    )
    if taught:
        return f"the end token is a target in {taught} of {len(whole)} texts"
    return Fault(
        f"token {ends[0]} (eos_token_id) is a target in none of {len(whole)} texts",
        how="end each text with tokenizer.eos_token, use the model's own chat template, and pad "
        "with another token",
    )


def _end_tokens(model: nn.Module) -> list[int]:
    """Return the ids that end a text, as a model of transformers has them."""
    config = getattr(model, "config", None)
    given = getattr(config, "eos_token_id", None)
    several = given if isinstance(given, list | tuple) else [given]
    return [one for one in several if isinstance(one, int)]


LEAK = 1e-3
"""Deviations of the logits. Rounding of fp32 gives 1e-6; a leak through one layer 1e-2 and more."""


@error(
    "PF060",
    "Labels are not shifted by one",
    source="the definition of next-token prediction; transformers shifts labels itself",
    cannot_see="losses other than cross_entropy and nll_loss; targets that are not tokens",
)
def shifted_once(label_shift: LabelShift) -> Fault | str:
    """Without a shift the model copies its input and the loss falls to 0; shifted twice, by the
    data and by the model, it learns to skip a token."""
    if label_shift.places == 1:
        return "targets are the next tokens"
    if label_shift.places == 0:
        return Fault("targets are the tokens themselves", how="shift the labels by one")
    return Fault(
        f"targets are {label_shift.places} tokens ahead",
        how="shift labels once: in the data, or in the model",
    )


@error(
    "PF061",
    "A position sees the future",
    source="the definition of a causal model; rounding is 1e-6 of the logits' deviation",
    cannot_see="leaks between rows of a batch, and tokens beyond the cut of the batch",
)
def causal(future_leak: float) -> Fault | str:
    """The model reads off what it should predict: the loss is too good to be true, and nothing of
    it is there when text is generated."""
    what = f"past logits change by {future_leak:.2g} of their deviation with future tokens"
    if not future_leak <= LEAK:
        fix = "mask attention with is_causal=True; pad convolutions on the left only"
        return Fault(what, how=fix)
    return what


@error(
    "PF062",
    "Packed texts see each other",
    source="position_ids that start anew mark the texts; rounding is 1e-6 of the logits' deviation",
    cannot_see="packed rows without position_ids",
)
def packed_apart(packed_leak: float) -> Fault | str:
    """Attention reaches from one text of a packed row into those before it, so answers are learnt
    from the conversations of others."""
    what = f"logits change by {packed_leak:.2g} of their deviation with the text before"
    if not packed_leak <= LEAK:
        fix = "use an attention that takes position_ids or cu_seqlens, or do not pack"
        return Fault(what, how=fix)
    return what
