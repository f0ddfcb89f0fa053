"""Which rank errs: by the gradient norm that each rank itself computed, before they are averaged.

Two replays     batch and state are the same, so a healthy rank repeats its norm to the last bit
Run and replay  a loss that no rank has again was that of the rank with the largest
Two ranks       the same batches on a different rank give about the same norm, wherever they are
"""

import math

from trimtab.probes.batch_or_state import Scale
from trimtab.probes.passes import Original, Question, StepResult, is_finite

ROUNDING = 1e-3
"""Relative differences of loss and gradient norm up to this may be rounding. Source: kernels that
are not deterministic differ in the sixth digit of a loss, and less than this in a norm."""

FURTHER = 10.0
"""If the norms of several ranks differ, one of them is named that differs this many times as much
as all others. Source: kernels that are not deterministic differ about equally on all ranks."""

LARGE_ITSELF = 1.5
"""Norms of the same batches on two ranks that differ by this factor. Source: ranks may draw
different dropout masks, which move the norm of a batch by less."""


def relative(one: float, other: float) -> float:
    """The relative difference of two numbers; infinite if only one of them is finite."""
    if one == other or not (is_finite(one) or is_finite(other)):
        return 0.0
    if not (is_finite(one) and is_finite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def rank_of_replays(one: StepResult, other: StepResult) -> int | None:
    """The rank whose own gradient differs between two replays of the same step and state."""
    if not one.rank_grads or len(one.rank_grads) != len(other.rank_grads):
        return None
    apart = [relative(a, b) for a, b in zip(one.rank_grads, other.rank_grads, strict=True)]
    furthest = max(range(len(apart)), key=lambda rank: apart[rank])
    rest = max((part for rank, part in enumerate(apart) if rank != furthest), default=0.0)
    return furthest if apart[furthest] > FURTHER * rest else None


def rank_of_loss(original: Original, again: StepResult) -> int | None:
    """The rank that had the largest loss in the run, if no rank has such a loss in a replay.

    A number that changed once after the loss, in a gradient, is not seen here.
    """
    was, now = original.largest_loss, again.largest_loss
    if was is None or now is None or relative(was, now) <= ROUNDING or was < now:
        return None
    return original.largest_loss_rank


def rank_of_batches(question: Question, before: StepResult, after: StepResult) -> int | None:
    """The rank that disagrees with both neighbours about the same batches.

    `after` is the step in which each rank had the batches of the next one.
    """
    world = len(before.rank_grads)
    if world < 2 or len(after.rank_grads) != world:
        return None
    disputed = [
        _is_apart(before.rank_grads[owner], after.rank_grads[(owner - 1) % world])
        for owner in range(world)
    ]
    # Rank r had its own batches, and those of rank r + 1.
    found = [r for r in range(world) if disputed[r] and disputed[(r + 1) % world]]
    if len(found) == 2 and world == 2:  # each disagrees with the other
        found = _least_usual(question, before, after)
    return found[0] if len(found) == 1 else None


def _is_apart(one: float, other: float) -> bool:
    return relative(one, other) > 1 - 1 / LARGE_ITSELF


def _least_usual(question: Question, before: StepResult, after: StepResult) -> list[int]:
    """Of two ranks the one that is further from the run's usual gradient, with both batches."""
    scale = Scale.of(question)
    if scale is None:
        return []

    def distance(norm: float) -> float:
        return abs(math.log(norm) - scale.norm) if is_finite(norm) and norm > 0 else math.inf

    far = [
        distance(before.rank_grads[batch]) > distance(after.rank_grads[1 - batch])
        for batch in (0, 1)
    ]
    # The first compares rank 0 with rank 1 on the batches of rank 0, the second the reverse.
    if far == [True, False]:
        return [0]
    return [1] if far == [False, True] else []
