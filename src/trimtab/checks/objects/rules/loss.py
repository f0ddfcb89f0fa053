"""Rules on loss and labels: one batch can be learned, micro-batches and ranks add up, labels are
shifted once, and no position sees the future; and on the loader: repeated batches and rows, ranks,
epochs, state."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trimtab.checks.objects.measure.loader import (
    NextEpoch,
    RankBatches,
    batch_fingerprint,
    row_fingerprints,
)
from trimtab.checks.objects.measure.measurements import MIN_FALL, FirstAttempt
from trimtab.checks.objects.measure.passes import LabelShift, Split, main_loss
from trimtab.checks.objects.measure.training import Overfit
from trimtab.checks.rule import Fault, Level, NotMeasured, advice, error, warning

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


REPEATED_ROWS = 0.1
"""Share of rows. Corpora have duplicates; deduplicated ones have under 1 % of them (Lee et al. 2022
report 0.4 to 14 % before)."""


@error(
    "PF070",
    "The loader gives the same batch twice",
    source="F03 of the catalogue",
    cannot_see="batches after the first 12",
)
def same_batch(batches: list[Any]) -> Fault | str:
    """The model learns a repeated batch by heart, and the data it replaces is never seen."""
    marks = [batch_fingerprint(batch) for batch in batches]
    if len(marks) < 2:
        raise NotMeasured("the loader gives a single batch")
    for at, mark in enumerate(marks):
        if mark in marks[:at]:
            fix = "look for a sampler that is seeded anew, or an iterator made anew, at each step"
            return Fault(f"batch {at} is batch {marks.index(mark)} again", how=fix)
    return f"{len(marks)} batches, all different"


@warning(
    "PF071",
    "The loader repeats rows",
    source="torch: an IterableDataset must be split over workers by hand; Lee et al. 2022",
    cannot_see="batches after the first 12, and rows that are nearly the same",
)
def same_rows(batches: list[Any]) -> Fault | str:
    """Each worker or shard goes over the same data, so that the run sees it several times and the
    rest never."""
    counts = Counter(mark for batch in batches for mark in row_fingerprints(batch))
    total = sum(counts.values())
    if total < 2:
        raise NotMeasured("the batches have no common first dimension")
    repeated = total - len(counts)
    what = f"{repeated} of {total} rows came before"
    if repeated > REPEATED_ROWS * total:
        return Fault(what, how="split the dataset over workers with get_worker_info()")
    return what


@error(
    "PF072",
    "Ranks get the same data",
    source="F03 of the catalogue; torch's DistributedSampler",
    cannot_see="batches after the first 12; ranks that share data on purpose (tensor parallel)",
)
def rank_data(ranks: RankBatches) -> Fault | str:
    """The gradient is averaged over copies of one batch: N ranks cost N times as much and learn
    what one would."""
    counts = Counter(mark for marks in ranks.fingerprints for mark in set(marks))
    shared = sum(count > 1 for count in counts.values())
    what = f"{shared} of {len(counts)} batches are seen by more than one of "
    what += f"{len(ranks.fingerprints)} ranks"
    if shared:
        return Fault(what, how="use DistributedSampler, or a seed that includes the rank")
    return what


@advice(
    "PF073",
    "The next epoch has the same order",
    source="torch: DistributedSampler repeats its order unless set_epoch is called",
    cannot_see="whether the training loop calls set_epoch",
)
def epoch_order(next_epoch: NextEpoch) -> Fault | str:
    """Batches come in the same company again, which costs quality, and a resume at the wrong epoch
    goes unnoticed."""
    what = f"an epoch has {next_epoch.num_batches} batches"
    if not next_epoch.is_same:
        return f"{what}; the next one begins with different ones"
    what += "; the next one begins with the same ones"
    if next_epoch.changes_by_set_epoch:
        return Fault(f"{what} until set_epoch is called", how="call sampler.set_epoch")
    level = Level.ADVICE if next_epoch.is_sequential else Level.WARNING
    return Fault(
        what, how="shuffle with a generator that is not seeded anew at each epoch", level=level
    )


@error(
    "PF074",
    "The loader does not return to its saved state",
    source="F18 of the catalogue",
    cannot_see="loaders without state_dict; random numbers of worker processes",
)
def loader_state(round_trip: tuple[list[int], list[int]]) -> Fault | str:
    """A resumed run repeats or skips data."""
    wanted, found = round_trip
    if wanted == found:
        return "after its state is loaded the loader goes on with the same batches"
    fix = "save the position, the epoch and the sampler's generator in state_dict"
    return Fault("after its state is loaded the loader gives different batches", how=fix)
