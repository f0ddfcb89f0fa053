"""What the answers of experiments say about causes, and which experiment to make next.

The shares are by construction of each experiment, not fitted: a replay of the same bits cannot come
from outside of batch, state and code, whatever the lab measures. So are those of settings that
differed from a snapshot's: they are compared, not measured.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trimtab.core.causes import Cause
from trimtab.explain.causes.ranking import HARDWARE, Ranking, Weights, lab_weights
from trimtab.explain.evidence.experiments import COMPARISONS

NEARLY_ALWAYS, OFTEN, SELDOM, RARELY, NEARLY_NEVER = 0.97, 0.6, 0.15, 0.05, 0.002

_EXACT = {"again", "first-nonfinite", "fp32"}
"""Experiments that compare bits, or find the operation itself. A false answer needs state that the
loop hides from the guard; the others compare with noise, and may be wrong by chance."""

_BATCHES = {
    Cause.HARD_BATCH: NEARLY_ALWAYS,
    Cause.RARE_TOKENS: NEARLY_ALWAYS,
    Cause.DATA_MIX_SHIFT: OFTEN,
    Cause.DUPLICATE_BATCH: SELDOM,
    Cause.LOGIC_NAN: OFTEN,
}

_WELL_AGAIN = {
    **dict.fromkeys(HARDWARE, NEARLY_ALWAYS),
    Cause.BAD_DEVICE: OFTEN,  # it may fail again
    # What code may do to the state once: a rollback takes that back, too.
    Cause.OPTIMIZER_STATE_LOST: OFTEN,
    Cause.STALE_SECOND_MOMENT: OFTEN,
    Cause.WRONG_RESUME: OFTEN,
    # The same for settings; but they were compared, and none differed.
    Cause.LR_DISCONTINUITY: SELDOM,
    Cause.EPSILON_REGIME: SELDOM,
    Cause.PARAMETERS_NOT_UPDATING: SELDOM,
    Cause.WEIGHT_DECAY: SELDOM,
    # The same batch gives the same numbers.
    Cause.LOGIC_NAN: NEARLY_NEVER,
    Cause.HARD_BATCH: NEARLY_NEVER,
    Cause.RARE_TOKENS: NEARLY_NEVER,
}

_YES: Mapping[str, Mapping[Cause, float]] = {
    "replay_differs": dict.fromkeys(HARDWARE, NEARLY_ALWAYS),
    "well_again": _WELL_AGAIN,
    "finite_again": dict.fromkeys(HARDWARE, NEARLY_ALWAYS),
    "replays_disagree": {Cause.BAD_DEVICE: OFTEN},
    "operation_not_finite": {Cause.LOGIC_NAN: NEARLY_ALWAYS, Cause.FP16_OVERFLOW: NEARLY_ALWAYS},
    "logic_not_finite": {Cause.LOGIC_NAN: NEARLY_ALWAYS},
    "finite_in_fp32": {Cause.FP16_OVERFLOW: NEARLY_ALWAYS},
    "sequences_at_fault": {
        **_BATCHES,
        Cause.RARE_TOKENS: NEARLY_ALWAYS,
        Cause.HARD_BATCH: OFTEN,
        Cause.LOGIC_NAN: SELDOM,
    },
    "batch_at_fault": _BATCHES,
    "epsilon_changed": {Cause.EPSILON_REGIME: NEARLY_ALWAYS},
    "betas_changed": {Cause.STALE_SECOND_MOMENT: NEARLY_ALWAYS},
    "decay_changed": {Cause.WEIGHT_DECAY: NEARLY_ALWAYS},
    "frozen_by_setting": {Cause.PARAMETERS_NOT_UPDATING: NEARLY_ALWAYS},
    # Flipped bits of gradients and moments move weights by updates; a load may change no norm.
    "moved_from_outside": {
        Cause.BIT_FLIP: SELDOM,
        Cause.BAD_DEVICE: RARELY,
        Cause.WRONG_RESUME: RARELY,
    },
    "rate_changed": {Cause.LR_DISCONTINUITY: NEARLY_ALWAYS, Cause.WRONG_SCHEDULE: NEARLY_ALWAYS},
    "state_at_fault": {
        cause: OFTEN if cause not in _BATCHES else RARELY
        for cause in Cause
        if cause not in (Cause.BIT_FLIP, Cause.BAD_DEVICE)
    },
}
"""How often the answer is yes, for the causes for which that is not nearly never."""

OBSERVED_BY: Mapping[str, tuple[str, ...]] = {
    "again": ("replay_differs", "replays_disagree"),
    "first-nonfinite": ("operation_not_finite", "logic_not_finite", "finite_again"),
    "fp32": ("finite_in_fp32",),
    "half": ("sequences_at_fault",),
    "earlier": ("batch_at_fault",),
    "next": ("state_at_fault",),
}
"""What each experiment shows."""

PASSES: Mapping[str, float] = {
    "again": 2,
    "first-nonfinite": 2,  # operations are looked at one by one
    "fp32": 2,
    "half": 2,  # most passes begin at the step itself
    "earlier": 0.1,  # one step, from a snapshot
    "next": 1,
}
"""What each costs, in replays from the snapshot to the step."""

MIN_SEPARATION = 0.5
"""Below this an experiment does not decide between two causes. Source: as for observations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedExperiment:
    """An experiment that is worth making."""

    experiment: str
    reason: str


_REPLAY = ProposedExperiment(experiment="again", reason="a replay shows whether it is the hardware")


def experiment_weights() -> Weights:
    """Return the fitted weights, with those of the experiments."""
    fitted = lab_weights()
    exact = {seen for name in _EXACT for seen in OBSERVED_BY[name]} | {
        compared.id for compared in COMPARISONS
    }
    shares = {
        name: {
            cause: said.get(cause, NEARLY_NEVER if name in exact else RARELY)
            for cause in fitted.causes
        }
        for name, said in _YES.items()
    }
    return Weights(
        shares={**fitted.shares, **shares},
        unknown=dict.fromkeys(exact, RARELY),
        temperature=fitted.temperature,
        provenance=fitted.provenance,
    )


def propose(
    ranking: Ranking,
    *,
    is_nonfinite: bool,
    is_state_nonfinite: bool,
    is_half_precision: bool,
    made: Collection[str],
) -> ProposedExperiment | None:
    """Propose the experiment that separates the first two causes best for its cost.

    Args:
        ranking: The causes.
        is_nonfinite: Whether the loss or the gradient norm is not finite: the operation is worth
            knowing whatever the cause.
        is_state_nonfinite: Whether weights or moments are not finite: so is whether a replay makes
            them so.
        is_half_precision: Whether the same in fp32 says something.
        made: The experiments that were made.

    Where the cause is the batch, its sequences are worth knowing, too.
    """
    first = ranking.first.cause
    second = ranking.candidates[1].cause if len(ranking.candidates) > 1 else None
    if is_nonfinite and "first-nonfinite" not in made:
        return ProposedExperiment(
            experiment="first-nonfinite", reason="the first operation is not known"
        )
    if is_state_nonfinite and not is_nonfinite and "again" not in made:
        return _REPLAY
    weights = experiment_weights()
    gains = {
        name: max(weights.separation(seen, first, second) for seen in observed) / PASSES[name]
        for name, observed in OBSERVED_BY.items()
        if name not in made
        and (name not in ("fp32", "first-nonfinite") or is_nonfinite)
        and (name != "fp32" or is_half_precision)
        and not (name in ("half", "earlier", "next") and is_nonfinite)
    }
    best = max(gains, key=lambda name: gains[name], default=None)
    if best is not None and gains[best] * PASSES[best] >= MIN_SEPARATION:
        between = " and ".join("something else" if c is None else c.id for c in (first, second))
        return ProposedExperiment(experiment=best, reason=f"it separates {between}")
    if first in HARDWARE and "again" not in made:
        return _REPLAY
    if first in (Cause.RARE_TOKENS, Cause.HARD_BATCH) and "half" not in made and not is_nonfinite:
        return ProposedExperiment(experiment="half", reason="the sequences are not known")
    return None
