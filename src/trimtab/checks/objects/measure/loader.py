"""What a loader gives: first batches, next epoch, a state round trip, what other ranks have.

Batches are cut to a size that can be afforded, and compared by fingerprints.
"""

import copy
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.ranks import exchange, num_ranks
from trimtab.checks.rule import NotMeasured
from trimtab.live.measure.batch_facts import fingerprint, host_tensors
from trimtab.state.batches import clone, map_tensors, num_rows, tensors_in
from trimtab.state.rng import get_random_state, set_random_state


def cut_rows(batch: Any, first: int, last: int) -> Any:
    return map_tensors(batch, lambda tensor: tensor[first:last])


def cut(batch: Any, rows: int, elements: int) -> Any:
    """Return the first rows, of sequences only as much as fits into `elements` tokens.

    Sequences are cut only where every tensor is whole numbers of one (rows, length) shape.
    """
    total = num_rows(batch, of_all=True)
    if not total:
        return clone(batch)
    rows = min(rows, total)
    tensors = tensors_in(batch)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    is_text = not any(tensor.is_floating_point() for tensor in tensors)
    length = max((shape[1] for shape in shapes if len(shape) == 2), default=0)
    if is_text and len(shapes) == 1 and length:
        most = max(elements // rows, 8)
        first = _first_target(batch, rows)
        # A long prompt has no target: begin in its end.
        begin = 0 if first < most // 2 else min(first - most // 4, max(length - most, 0))
        return map_tensors(batch, lambda tensor: tensor[:rows, begin : begin + most].clone())
    return map_tensors(batch, lambda tensor: tensor[:rows].clone())


def _first_target(batch: Any, rows: int) -> int:
    """Return the first place at which a target of the rows counts; 0 without any."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, torch.Tensor):
        return 0
    return int((labels[:rows] >= 0).any(0).int().argmax())


def batch_fingerprint(batch: Any) -> int:
    """Return a number that is equal for equal batches."""
    on_host = map_tensors(batch, lambda tensor: tensor.detach().cpu())
    return fingerprint([list(host_tensors(on_host))])


def row_fingerprints(batch: Any) -> Iterator[int]:
    """Yield a number per row of the batch that is equal for equal rows."""
    on_host = map_tensors(batch, lambda tensor: tensor.detach().cpu())
    for row in range(num_rows(batch, of_all=True)):
        parts = (t[row].contiguous().reshape(-1) for t in host_tensors(on_host))
        value = 0
        for part in parts:
            value = zlib.crc32(part.view(torch.uint8).numpy().data, value)
        yield value


NUM_BATCHES = 12
"""Batches that are drawn: the steps of the short run, and a few to compare."""

BEFORE_SAVE, AFTER_SAVE = 3, 2
"""Batches that are drawn before and after the loader's state is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextEpoch:
    """The first batches of two epochs."""

    is_same: bool
    is_sequential: bool
    """Whether the loader has no sampler that shuffles."""
    changes_by_set_epoch: bool | None
    """None if no sampler has `set_epoch`."""
    num_batches: int
    """Batches of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatches:
    """What each rank sees, in the order of ranks."""

    fingerprints: tuple[tuple[int, ...], ...]
    """Of the first batches."""
    losses: tuple[float, ...]
    num_targets: tuple[int | None, ...]


def draw(loader: Any) -> list[Any]:
    """Return copies of the first batches: a loader may fill the same memory again."""
    if loader is None:
        raise NotMeasured("no loader was given")
    batches = [clone(batch) for batch in islice(iter(loader), NUM_BATCHES)]
    if not batches:
        raise NotMeasured("the loader gives no batch")
    return batches


def next_epoch(inputs: Inputs) -> NextEpoch:
    """Begin two epochs one after the other."""
    loader = inputs.loader
    length = _length(loader)
    if isinstance(loader, list | tuple):
        raise NotMeasured("the loader is a list of batches")
    if length < 2:
        raise NotMeasured("an epoch is a single batch")
    if inputs.steps is not None and inputs.steps <= length:
        raise NotMeasured(f"the run ends within the first epoch of {length} batches")
    sampler: Any = getattr(loader, "sampler", None)
    first, second = _first(loader), _first(loader)
    changes = None
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(getattr(sampler, "epoch", 0) + 1)
        changes = _first(loader) != second
    return NextEpoch(
        is_same=first == second,
        is_sequential=isinstance(sampler, torch.utils.data.SequentialSampler),
        changes_by_set_epoch=changes,
        num_batches=length,
    )


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        raise NotMeasured("the loader has no length, so its epochs are not known") from None


def _first(loader: Any) -> list[int]:
    return [batch_fingerprint(batch) for batch in islice(iter(loader), 2)]


def round_trip(inputs: Inputs, has_state: bool) -> tuple[list[int], list[int]]:
    """Return the batches after a save, as they came and as they come after the state is loaded."""
    loader = inputs.loader
    if not has_state:
        raise NotMeasured("the loader has no state_dict and load_state_dict")
    iterator = iter(loader)
    if len(list(islice(iterator, BEFORE_SAVE))) < BEFORE_SAVE:
        raise NotMeasured(f"the loader gives fewer than {BEFORE_SAVE} batches")
    saved, random = copy.deepcopy(loader.state_dict()), get_random_state()
    wanted = [batch_fingerprint(batch) for batch in islice(iterator, AFTER_SAVE)]
    del iterator
    loader.load_state_dict(saved)
    iterator = iter(loader)
    set_random_state(random)
    return wanted, [batch_fingerprint(batch) for batch in islice(iterator, AFTER_SAVE)]


def gather_ranks(facts: tuple[Sequence[Any], float, int | None] | None) -> RankBatches:
    """Exchange batches, loss and number of targets; every rank comes here, even with nothing."""
    if num_ranks() == 1:
        raise NotMeasured("there is one rank only")
    mine = None
    if facts is not None:
        batches, loss, num_targets = facts
        mine = (tuple(batch_fingerprint(batch) for batch in batches), loss, num_targets)
    found = exchange("what ranks see", mine)
    if None in found:
        raise NotMeasured(f"rank {found.index(None)} has no first step")
    fingerprints, losses, counts = zip(*found, strict=True)
    return RankBatches(fingerprints=fingerprints, losses=losses, num_targets=counts)
