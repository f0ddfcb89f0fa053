"""Advice: the action for each class of incident, in two columns of one table.

The textbook has one action per class. Trimtab replaces those that depend on more than the class,
and waits for what does not touch the weights.
"""

import math
from collections.abc import Callable, Mapping

from trimtab.core.actions import Action, ActionKind
from trimtab.core.causes import Cause
from trimtab.core.findings import HARMLESS, NOT_FINITE, NOT_RESTORED, Symptom
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.text import counted
from trimtab.detect.loss.meaning import SMALL_SHARE
from trimtab.explain.diagnosis import Diagnosis

SURE = 0.8
"""An outlook this certain is worth acting on; under it waiting costs less than a wrong rollback."""

HARD_FACTS = NOT_RESTORED | {
    Symptom.NONFINITE_LOSS,
    Symptom.NONFINITE_GRAD_NORM,
    Symptom.NONFINITE_NORM,
    Symptom.SCALE_COLLAPSE,
    Symptom.STATE_RESET,
    Symptom.FROZEN,
    Symptom.NO_LEARNING,
    Symptom.LR_JUMP,
    Symptom.LR_RISING,
    Symptom.DATA_BACK,
    Symptom.REPEATED_BATCH,
    Symptom.REFERENCE_GAP,
    Symptom.OTHER_BATCH,
}
"""What is so, whatever the noise of the run. The rest is a signal that left its usual range."""

PASSIVE = HARMLESS | {
    Symptom.GRADIENT_SPIKE,
    Symptom.UPDATE_SPIKE,
    Symptom.REPEATED_BATCH,
    Symptom.OTHER_BATCH,
    Symptom.ODD_TOKENS,
    Symptom.TEXT_CHANGED,
    # Changed on purpose, as far as can be known: a warning for a person.
    Symptom.LR_CHANGED,
    Symptom.OPTIONS_CHANGED,
}
"""What says nothing about the weights by itself: large gradients, odd batches, lost time."""

AFTER_RESET = frozenset({Symptom.STATE_RESET, Symptom.STALE_MOMENT, Symptom.UPDATE_SHIFT})
"""What shows in the optimizer alone when its state is cleared, or an older one is loaded."""

ONE_BATCH = frozenset({Cause.HARD_BATCH, Cause.RARE_TOKENS})
"""What is over with the batch that brought it, unless the loss stays up."""

SKIPPABLE = frozenset({*ONE_BATCH, Cause.DUPLICATE_BATCH, Cause.DATA_MIX_SHIFT})
"""What may stay away if batches are skipped. Causes in code, settings or precision go on whichever
batches come."""

FIRST_CHECKPOINT = 200
"""Steps within which a run that has not learnt anything has no checkpoint to go back to. Source:
the stability guides save one every 200 steps."""

LEARNT = 0.95
"""Fraction of its first loss that a run must have come below to be worth going back to. Chosen."""

MILD = frozenset({Symptom.RNG_NOT_RESTORED, Symptom.SCALER_NOT_RESTORED})
"""What a resume may leave out without hurting the weights: a scaler finds its range again."""

Advice = Action | Callable[[Diagnosis], Action]
"""An action, or how it follows from the diagnosis."""

_Choices = Mapping[IncidentClass | None, Advice]
"""The class None is that of an incident that is too young to have one."""


def advise(diagnosis: Diagnosis, *, recurs: bool) -> Action:
    """Return trimtab's action; `recurs`: it was at the same place before a restart."""
    incident = diagnosis.incident
    # The first that fits decides: what is done already, what is certain, then what is judged.
    if diagnosis.cost.undone:
        return _after_undo(diagnosis)
    if HARMLESS.issuperset(incident.symptoms):
        return _wait(
            "Continue, and apply the fix at the next restart.",
            "The weights are not affected; only time is lost.",
        )
    if _is_partly_frozen(incident):
        part = incident.findings[0].signal.partition("/")[2]
        return _wait(
            f"Continue if {part} was frozen on purpose; if not, unfreeze it (`requires_grad`, the "
            "optimizer's groups).",
            "What does not move keeps its values: there is nothing to go back for.",
        )
    if _was_only_reset(incident):
        return _wait(
            "Continue if the optimizer's state was reset or loaded on purpose; if not, load it at "
            "the next restart.",
            "The loss did not follow.",
        )
    left_out = NOT_RESTORED.intersection(incident.symptoms)
    if left_out:
        return _CONTINUE_AS_IT_IS if left_out <= MILD else _load_again(incident)
    is_lost = incident.incident_class is IncidentClass.DIVERGENT
    if incident.started_again and not is_lost and NOT_FINITE.isdisjoint(incident.symptoms):
        return _wait(
            f"Continue if a restart or a reset was meant; if not, continue from "
            f"{_before(incident)}.",
            "The loss went back to where the run began, and falls as it did then.",
        )
    # What comes back after a restart is not over, however harmless it was the first time.
    if not recurs and incident.was_kept_out:
        return _wait(
            "Continue; apply the fix at the next restart if it comes again.",
            "The bad steps were discarded and never reached the weights.",
        )
    if incident.is_of_policy:
        return _after_policy(diagnosis)
    if not recurs and _has_no_direction(incident):
        return _wait(
            "Continue, and compare an evaluation with one before; say objective='measure' if this "
            "loss should fall.",
            "This loss is not known to measure progress: it is a policy's, has risen about as much "
            "as it fell, or is near 0.",
        )
    if not recurs and _is_one_signal(incident):
        return _wait(
            f"Continue, and look at {incident.findings[0].signal}; act if another signal or the "
            "loss follows.",
            "One signal alone left its usual range, and the loss did not follow.",
        )
    if not recurs and _passes(diagnosis):
        return _keep_going(diagnosis)
    return _choose(_TRIMTAB, diagnosis, recurs=recurs)


def advise_by_textbook(diagnosis: Diagnosis, *, recurs: bool) -> Action:
    """Return the textbook's action; `recurs`: it was at the same place before a restart."""
    return _choose(_TEXTBOOK, diagnosis, recurs=recurs)


def _wait(instruction: str, reason: str) -> Action:
    return Action(kind=ActionKind.WAIT, instruction=instruction, reason=reason)


def _roll_back(instruction: str, reason: str) -> Action:
    return Action(kind=ActionKind.ROLL_BACK, instruction=instruction, reason=reason)


def _choose(table: _Choices, diagnosis: Diagnosis, *, recurs: bool) -> Action:
    if recurs:
        return Action(
            kind=ActionKind.LOWER_LR,
            instruction="Lower the learning rate by a factor of 2 to 3 and continue from "
            f"{_before(diagnosis.incident)}.",
            reason="It came back at the same place after a restart.",
        )
    advice = table[diagnosis.incident_class]
    return advice if isinstance(advice, Action) else advice(diagnosis)


def _before(incident: Incident) -> str:
    """Return the state that the incident has not touched."""
    step = incident.onset.step
    return (
        "the initial weights" if _is_young(incident) else f"a checkpoint older than step {step:,}"
    )


def _is_young(incident: Incident) -> bool:
    before, start = incident.baseline_mean, incident.start_loss
    has_learnt = before is not None and start is not None and before < start * LEARNT
    return 0 <= incident.onset.step <= FIRST_CHECKPOINT and not has_learnt


# The textbook: one action per class


def _roll_back_and_skip(diagnosis: Diagnosis) -> Action:
    return _skip_from(
        diagnosis, reason="The optimizer's state holds what happened; skipping alone does not help."
    )


def _apply_remedy(
    diagnosis: Diagnosis, reason: str = "The cause remains until it is fixed."
) -> Action:
    again = "start again" if _is_young(diagnosis.incident) else "continue"
    return _roll_back(f"Apply the fix and {again} from {_before(diagnosis.incident)}.", reason)


_LOOK_AGAIN = _wait("Continue, and look again 200 steps later.", "The loss came back by itself.")

_TEXTBOOK: _Choices = {
    IncidentClass.HARD_BATCH: _LOOK_AGAIN,
    IncidentClass.RECOVERABLE: _LOOK_AGAIN,
    IncidentClass.LINGERING: _roll_back_and_skip,
    IncidentClass.DIVERGENT: _roll_back_and_skip,
    IncidentClass.SILENT: _apply_remedy,
    IncidentClass.PLATEAU: Action(
        kind=ActionKind.STOP,
        instruction="Stop the run if the evaluation loss is flat too.",
        reason="The model no longer learns.",
    ),
    None: _wait("Look again after 50 more records.", "It is too early to say."),
}


# Trimtab: where the action depends on more than the class


CLEAR_RISE = 3.0
"""Usual deviations by which a loss must have settled higher before a rollback pays."""

SUDDEN = frozenset(
    {Symptom.LOSS_SPIKE, Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE, Symptom.LR_JUMP}
)
"""What damages weights. A level that rose without any of these is mostly the data."""

GIVEN_BACK = 0.33
"""The share of what it had gained that a loss near 0 must give back before it counts. Chosen."""

FAR_ABOVE_START = 2.0
"""Times its start that the loss of a young run must have reached before a rollback or a lower rate
is advised. Chosen: losses of policies and adversaries rise by a half at once."""


def _level_of(incident: Incident) -> float | None:
    """Return the level that the loss has settled at, or else its last value."""
    return incident.last.loss if incident.new_level is None else incident.new_level


def _is_near_zero(incident: Incident) -> bool:
    """Return whether the loss was near 0, and has not gone far from there."""
    level, before, start = _level_of(incident), incident.baseline_mean, incident.start_loss
    if level is None or before is None or start is None or not 0 <= before < SMALL_SHARE * start:
        return False
    return level - before < GIVEN_BACK * (start - before)


def _is_clear(incident: Incident) -> bool:
    """Return whether a lingering loss is clearly higher, after something that damages weights."""
    level = _level_of(incident)
    if level is None or incident.baseline_mean is None or incident.baseline_deviation is None:
        return False
    rise = level - incident.baseline_mean
    return rise > CLEAR_RISE * incident.baseline_deviation and not SUDDEN.isdisjoint(
        incident.symptoms
    )


def _after_lingering(diagnosis: Diagnosis) -> Action:
    incident = diagnosis.incident
    if HARD_FACTS.isdisjoint(incident.symptoms) and not _is_clear(incident):
        is_of_data = diagnosis.cause is None or diagnosis.cause in SKIPPABLE
        look = f"; look at the data of step {incident.onset.step:,}" if is_of_data else ""
        return _wait(
            f"Continue, and compare the evaluation loss with the one before{look}.",
            "The loss is a little higher, or rose without a spike: that is mostly the data.",
        )
    if incident.end is not None and incident.new_level is None:
        return _wait(
            "Continue, and compare the evaluation loss with the one before.",
            f"The loss took {incident.records} records, but it came back.",
        )
    return _go_back(
        diagnosis,
        unless="the data was changed on purpose",
        reason="The loss has stayed on its higher level.",
    )


def _after_divergence(diagnosis: Diagnosis) -> Action:
    incident = diagnosis.incident
    last = incident.last.loss
    is_finite = last is not None and math.isfinite(last)
    if is_finite and Symptom.NONFINITE_NORM not in incident.symptoms:
        return _go_back(diagnosis, reason="The loss has left its level and does not come back.")
    return _go_back(diagnosis, reason="The weights are lost; every step after the onset is wasted.")


def _after_undo(diagnosis: Diagnosis) -> Action:
    """Advise after weights and optimizer were restored: did that help?"""
    updates, is_over = counted(diagnosis.cost.undone, "update"), diagnosis.incident.end is not None
    is_away = diagnosis.incident_class in (IncidentClass.LINGERING, IncidentClass.DIVERGENT)
    if not is_away and (is_over or diagnosis.cost.undo_helped is not False):
        return _wait(
            "Continue; nothing needs to be done.",
            f"Weights and optimizer were restored; {updates} lost.",
        )
    return _roll_back(
        f"Stop, and continue from {_before(diagnosis.incident)}. If your code keeps a second copy "
        "of the weights (Lookahead, EMA), pass it to trimtab.watch by `state=`.",
        f"The undo of {updates} has not helped: the loss is not back at its level.",
    )


def _after_silence(diagnosis: Diagnosis) -> Action:
    is_known = any(isinstance(symptom, Symptom) for symptom in diagnosis.incident.symptoms)
    if diagnosis.cause is None and not is_known:
        return _wait(
            "Continue, and look at what the detector reported.",
            "The loss did not follow, and no cause is known.",
        )
    return _apply_remedy(diagnosis)


def _after_policy(diagnosis: Diagnosis) -> Action:
    """Advise on what the signals of a policy show; the loss plays no part."""
    incident = diagnosis.incident
    is_lost = {Symptom.REWARD_FELL, Symptom.REWARD_HACKED} & set(incident.symptoms)
    if diagnosis.cause is not None and (is_lost or len(incident.symptoms) > 1):
        return _apply_remedy(diagnosis)
    if diagnosis.cause is not None:
        return _wait("Apply the fix at the next restart.", "The reward has not fallen so far.")
    return _wait(
        f"Continue, and read responses of step {incident.onset.step} beside earlier ones; go back "
        f"to {_before(incident)} if held-out results fall.",
        "The signals do not agree on one cause.",
    )


def _has_no_direction(incident: Incident) -> bool:
    """Return whether nothing but a loss moved that is not known to have a direction.

    It has one if it fell before; of a run too young to know, if it is far above its start. Near 0
    it moves by any factor.
    """
    if not HARD_FACTS.isdisjoint(incident.symptoms):
        return False
    if incident.has_direction is None:
        level, start = _level_of(incident), incident.start_loss
        return start is not None and level is not None and level < FAR_ABOVE_START * start
    return not incident.has_direction or _is_near_zero(incident)


def _is_one_signal(incident: Incident) -> bool:
    """Return whether one signal left its usual range, and neither the loss nor another one did."""
    if incident.incident_class is not IncidentClass.SILENT:
        return False
    if any(finding.explanation for finding in incident.findings):
        return False
    signals = {finding.signal for finding in incident.findings}
    return len(signals) == 1 and HARD_FACTS.isdisjoint(incident.symptoms)


def _is_partly_frozen(incident: Incident) -> bool:
    """Return whether a part of the model stopped moving, and nothing else happened."""
    return (
        incident.incident_class is IncidentClass.SILENT
        and set(incident.symptoms) == {Symptom.FROZEN}
        and all("/" in finding.signal for finding in incident.findings)
    )


def _was_only_reset(incident: Incident) -> bool:
    """Return whether the optimizer's state was reset, and the loss did not follow."""
    found = set(incident.symptoms)
    is_silent = incident.incident_class is IncidentClass.SILENT
    return is_silent and Symptom.STATE_RESET in found and found <= PASSIVE | AFTER_RESET


def _passes(diagnosis: Diagnosis) -> bool:
    """Return whether it is over with its batch, or of gradients alone, and the loss is unharmed."""
    incident = diagnosis.incident
    if incident.incident_class is not IncidentClass.SILENT:
        return False
    known = {symptom for symptom in incident.symptoms if isinstance(symptom, Symptom)}
    is_passive = bool(known) and known <= PASSIVE
    is_of_batch = is_passive or diagnosis.cause in ONE_BATCH
    has_explanation = any(finding.explanation for finding in incident.findings)
    is_fact = not (HARD_FACTS - PASSIVE).isdisjoint(incident.symptoms)
    return is_of_batch and not has_explanation and not is_fact


def _keep_going(diagnosis: Diagnosis) -> Action:
    step = diagnosis.incident.onset.step
    is_of_batch = diagnosis.cause is None or diagnosis.cause in ONE_BATCH
    what = (
        f"look at the batch of step {step}; skip it if the run has to go back"
        if is_of_batch
        else "apply the fix at the next restart"
    )
    return _wait(
        f"Continue, and {what}. Roll back only if the loss rises and stays up.",
        "The loss did not follow.",
    )


def _load_again(incident: Incident) -> Action:
    step = next(f.step for f in incident.findings if f.symptom in NOT_RESTORED)
    return _roll_back(
        "Stop, apply the fix and resume from the same checkpoint again.",
        f"The steps since the resume at step {step} start from a state that is not the saved one.",
    )


_CONTINUE_AS_IT_IS = _wait(
    "Continue, and apply the fix before the next resume.",
    "The weights are the saved ones; the run only cannot be reproduced from here.",
)


def _while_open(diagnosis: Diagnosis) -> Action:
    """Advise while the incident is open: the outlook decides whether to prepare a rollback."""
    incident = diagnosis.incident
    outlook = incident.outlook
    if incident.back_in is not None:
        steps = max(int(float(f"{incident.back_in:.1g}")), 1)  # one digit that counts
        return _wait(
            f"Continue; the loss will be back in about {steps} steps.",
            "Its gap to the trend shrinks.",
        )
    if outlook is None:
        return _wait("Look again when there are more records.", "It is too early to say.")
    reason = f"Outlook: {outlook.incident_class}, {100 * outlook.certainty:.0f} % certain."
    if outlook.incident_class is not IncidentClass.RECOVERABLE and outlook.certainty >= SURE:
        return _roll_back(
            f"Prepare {_before(incident)}; roll back if the loss is not back in 100 steps.", reason
        )
    return _wait("Wait for the next outlook.", reason)


_TRIMTAB: _Choices = {
    **_TEXTBOOK,
    IncidentClass.HARD_BATCH: _wait(
        "Continue; nothing needs to be done.", "One batch was hard and the next ones were not."
    ),
    IncidentClass.LINGERING: _after_lingering,
    IncidentClass.DIVERGENT: _after_divergence,
    IncidentClass.SILENT: _after_silence,
    None: _while_open,
}


def _go_back(diagnosis: Diagnosis, *, reason: str, unless: str = "") -> Action:
    """Roll back, and fix the cause if it is known and not in the data; else skip batches."""
    # Skipping batches does not help against what is in the code, the state or a device.
    if isinstance(diagnosis.cause, Cause) and diagnosis.cause not in SKIPPABLE:
        return _apply_remedy(diagnosis, reason)
    if diagnosis.cause is None and _is_young(diagnosis.incident):
        if diagnosis.incident.symptoms[0] in NOT_FINITE:  # nothing says that the rate is too high
            return Action(
                kind=ActionKind.STOP,
                instruction="Stop, run one batch with a finiteness check after each module, and "
                "start again once it is finite.",
                reason=f"{reason} A run this young has no checkpoint to go back to.",
            )
        return Action(
            kind=ActionKind.LOWER_LR,
            instruction="Start again with a learning rate 2 to 3 times lower, or a longer warm-up.",
            reason=f"{reason} A run this young has no checkpoint to go back to.",
        )
    return _skip_from(diagnosis, reason=reason, unless=unless)


def _skip_from(diagnosis: Diagnosis, *, reason: str, unless: str = "") -> Action:
    """Roll back to before the onset and skip the batches of the incident."""
    condition = f", unless {unless}" if unless else ""
    return _roll_back(
        f"Roll back to {_before(diagnosis.incident)} and skip 5 to 20 batches from "
        f"there{condition}.",
        reason,
    )
