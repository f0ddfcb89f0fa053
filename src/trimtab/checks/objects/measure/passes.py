"""Forward and backward passes of one batch, and what they say when something is changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.loader import cut_rows
from trimtab.checks.objects.measure.ranks import exchange
from trimtab.checks.objects.measure.trace import LossCall, Trace
from trimtab.checks.rule import NotMeasured
from trimtab.state.batches import clone, map_tensors, num_rows, tensors_in

MICRO_BATCHES = 4
"""Parts into which a batch is split: 1x4 against 4x1."""

MIN_TARGETS, MIN_SHARE, MIN_LEAD = 8, 0.9, 0.2
"""Targets that must agree with the tokens at one shift, and by how much more than at the next best:
text repeats itself, so that some of them agree at every shift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPass:
    """A forward and backward pass."""

    loss: float
    trace: Trace
    gradients: Mapping[str, torch.Tensor | None]
    """By parameter; None if it got none."""

    @property
    def num_classes(self) -> int:
        return main_loss(self.trace).num_classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The loss of a batch, whole and in micro-batches."""

    whole: float
    parts: tuple[float, ...]
    num_targets: tuple[int, ...]
    """Targets that count in each part; empty if not known."""

    @property
    def mean(self) -> float:
        """What a loop computes that divides each loss by the number of micro-batches."""
        return sum(self.parts) / len(self.parts)


@dataclass(frozen=True, slots=True)
class LabelShift:
    """How many places the targets are ahead of the tokens: 1 for next-token prediction."""

    places: int
    tokens: torch.Tensor


def main_loss(trace: Trace) -> LossCall:
    """Return the loss call with the most classes: the main one beside auxiliary ones."""
    if not trace.losses:
        raise NotMeasured("the loss calls neither cross_entropy nor nll_loss")
    return max(trace.losses, key=lambda call: call.num_classes)


def run_pass(inputs: Inputs, batch: Any) -> BatchPass:
    """Run a forward and backward pass in training mode; gradients stay on the parameters."""
    model = inputs.model
    exchange("a pass", None)
    model.train()
    for parameter in model.parameters():
        parameter.grad = None  # the user's gradients would be added to; KeptState has them
    trace = Trace(model)
    with torch.enable_grad():
        with trace:  # not around backward, where checkpointed layers repeat their forward pass
            loss = inputs.loss(model, clone(batch))
        loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return BatchPass(loss=float(loss.detach()), trace=trace, gradients=gradients)


EvalPass = tuple[float, Trace]
"""Loss and trace of a forward pass without dropout and gradients."""


def run_eval(inputs: Inputs, batch: Any) -> EvalPass:
    exchange("a pass", None)
    inputs.model.eval()
    trace = Trace(inputs.model)
    with torch.no_grad(), trace:
        loss = inputs.loss(inputs.model, clone(batch))
    return float(loss), trace


def split_loss(inputs: Inputs, batch: Any, whole: float) -> Split:
    """Return the loss of the batch as one, which is known, and as several micro-batches."""
    rows = num_rows(batch, of_all=True)
    # Even parts only: the mean over uneven ones differs from the whole by itself.
    parts = next((n for n in (MICRO_BATCHES, 3, 2) if rows and rows % n == 0), 0)
    if not parts:
        raise NotMeasured(f"a batch of {rows} rows cannot be split evenly")
    if len(set(exchange("micro-batches", parts))) > 1:
        raise NotMeasured("the batches of the ranks have different numbers of rows")
    size = rows // parts
    found = [run_eval(inputs, cut_rows(batch, at, at + size)) for at in range(0, rows, size)]
    counts = [trace.losses[-1].num_targets for _, trace in found if trace.losses]
    return Split(
        whole=whole,
        parts=tuple(loss for loss, _ in found),
        num_targets=tuple(counts) if len(counts) == parts else (),
    )


def label_shift(trace: Trace) -> LabelShift:
    """Find how far the targets are ahead of the tokens.

    A model with an encoder embeds several batches of tokens; the decoder's are those that fit.
    """
    call = main_loss(trace)
    found: list[LabelShift] = []
    reason = NotMeasured("no embedding of (rows, length) tokens is called")
    for tokens in trace.tokens:
        is_text = tokens.dim() == 2 and tokens.shape[1] > 1
        if is_text and not bool((tokens[0].diff() == 1).all()):  # not positions
            try:
                found.append(LabelShift(_shift(call, tokens), tokens))
            except NotMeasured as error:
                reason = error
    if not found:
        raise reason
    return next((shift for shift in found if shift.places == 1), found[0])


def _shift(call: LossCall, tokens: torch.Tensor) -> int:
    targets = call.targets.reshape(-1)
    rows, length = tokens.shape
    if call.targets.is_floating_point() or len(targets) % rows:
        raise NotMeasured("the targets are not one per token")
    targets = targets.view(rows, -1).to(tokens.device)
    counts = targets != call.ignore_index
    shares = []
    for shift in range(4):  # 0: none, 1: right, 2: in the data and in the model
        width = min(targets.shape[1], length - shift)
        valid = counts[:, :width]
        if width < 2 or int(valid.sum()) < MIN_TARGETS:
            break
        same = (targets[:, :width] == tokens[:, shift : shift + width]) & valid
        shares.append(float(same.sum() / valid.sum()))
    ranked = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)
    if len(ranked) < 2 or shares[ranked[0]] < MIN_SHARE:
        raise NotMeasured("the targets are not the tokens of the batch, at any shift")
    if shares[ranked[0]] - shares[ranked[1]] < MIN_LEAD:
        raise NotMeasured("the tokens of the batch repeat, so every shift fits")
    return ranked[0]


def future_leak(inputs: Inputs, batch: Any, tokens: torch.Tensor, seen: EvalPass) -> float:
    """Return the largest change of a past logit with future tokens, in deviations of the logits.

    `seen` is the batch as it is.
    """
    half = tokens.shape[1] // 2
    if half < 1:
        raise NotMeasured("the rows have one token only")
    return _leak(inputs, batch, tokens, seen, slice(half, None), slice(half))


def packed_leak(inputs: Inputs, batch: Any, seen: EvalPass) -> float:
    """Return the largest change of a logit with the packed texts before its own, likewise."""
    places = batch.get("position_ids") if isinstance(batch, Mapping) else None
    if not isinstance(places, torch.Tensor) or places.dim() != 2:
        raise NotMeasured("the batch has no position_ids")
    starts = (places[0, 1:] == 0).nonzero()
    if not len(starts):
        raise NotMeasured("no text but the first begins in a row")
    start = int(starts[-1]) + 1
    one = cut_rows(batch, 0, 1)
    if len(places) > 1:
        seen = run_eval(inputs, one)
    tokens = batch["input_ids"][:1]
    return _leak(inputs, one, tokens, seen, slice(start), slice(start, None))


def _leak(
    inputs: Inputs,
    batch: Any,
    tokens: torch.Tensor,
    seen: EvalPass,
    changed_places: slice,
    watched: slice,
) -> float:
    """Return the largest change of the watched logits with tokens at other places."""
    tokens = tokens.cpu()
    leaves = [leaf for leaf in tensors_in(batch) if _begins_with(leaf, tokens)]
    if not leaves:
        raise NotMeasured("the tokens that the model embeds are not a tensor of the batch")
    high = int(max(int(leaf.max()) for leaf in leaves)) + 1

    def change(leaf: torch.Tensor) -> torch.Tensor:
        if not any(leaf is known for known in leaves):
            return leaf
        changed = leaf.clone()
        # Other tokens, all in the vocabulary.
        changed[:, changed_places] = (changed[:, changed_places] + 1) % high
        return changed

    before = _logits(seen, len(tokens))
    after = _logits(run_eval(inputs, map_tensors(batch, change)), len(tokens))
    is_same = torch.equal(before[:, watched], after[:, watched])
    if all(exchange("changed tokens", is_same)):
        return 0.0
    if not torch.equal(before, _logits(run_eval(inputs, batch), len(tokens))):
        raise NotMeasured("the same tokens do not give the same logits")
    apart = (before[:, watched].float() - after[:, watched].float()).abs().max()
    return float(apart / before.float().std().clamp(min=1e-12))


def _begins_with(leaf: torch.Tensor, tokens: torch.Tensor) -> bool:
    if leaf.dim() != 2 or leaf.is_floating_point() or len(leaf) != len(tokens):
        return False
    length = tokens.shape[1]
    return leaf.shape[1] >= length and torch.equal(leaf[:, :length].cpu(), tokens)


def _logits(seen: EvalPass, rows: int) -> torch.Tensor:
    """Return the logits as (rows, length, classes)."""
    _, trace = seen
    given = getattr(trace.output, "logits", None)
    logits = given if isinstance(given, torch.Tensor) else main_loss(trace).logits
    if logits.dim() == 2 and len(logits) % rows == 0:
        logits = logits.view(rows, -1, logits.shape[1])
    if logits.dim() != 3 or len(logits) != rows:
        raise NotMeasured("the logits are not one row per token")
    return logits.detach()
