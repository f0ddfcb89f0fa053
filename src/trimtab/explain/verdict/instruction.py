"""The instruction: the one thing to do about an incident, made from its facts.

Headline, alert, page, log line, JSON and post-mortem all show this value. It never speaks of the
cause: what fixes that is the remedy's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.actions import Action, ActionKind
from trimtab.core.causes import AnyCause, Cause
from trimtab.core.findings import HARMLESS, NOT_RESTORED, OF_POLICY, Symptom
from trimtab.core.incident_facts import Course, Facts, Level
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.signals import REWARD
from trimtab.core.text import counted, digits
from trimtab.detect.loss.meaning import SMALL_SHARE
from trimtab.explain.verdict.table import (
    ABOVE,
    BACK,
    DEAD_RECORDS,
    FAR_ABOVE_START,
    LONG_STEPS,
    OFTEN,
    PATIENCE,
    PATIENCE_IF_DOUBLED,
    RETURN_STEPS,
    STANDSTILL_STEPS,
)

MILD_RESUME = frozenset({Symptom.RNG_NOT_RESTORED, Symptom.SCALER_NOT_RESTORED})
"""What a resume may leave out without hurting the weights: a scaler finds its range again."""

PROVEN = frozenset({Symptom.REPLICAS_DIFFER, Symptom.HARMED_STATE, Symptom.NONFINITE_NORM})
"""Harm to the weights that is there whatever the loss does."""

SUDDEN = frozenset(
    {
        Symptom.LOSS_SPIKE,
        Symptom.GRADIENT_SPIKE,
        Symptom.UPDATE_SPIKE,
        Symptom.LR_JUMP,
        Symptom.NONFINITE_LOSS,
        Symptom.NONFINITE_GRAD_NORM,
        Symptom.NONFINITE_NORM,
        Symptom.HARMED_STATE,
    }
)
"""What damages weights. A level that rose a little without any of these is mostly the data."""

CLEAR_NOISE, CLEAR_LOST = 3.0, 0.25
"""Deviations of one record, or the fraction of what was learnt, by which a loss that rose without
any of these must be higher for a rollback to pay. Chosen."""

GIVEN_BACK = 0.33
"""The fraction of what it had gained that a loss near 0 must give back before it counts: there it
moves by any factor. Chosen."""

FELL, FELL_NOISE = 0.15, 4.0
"""The fraction of the start, and the deviations of one record, by which the loss of a young run
must have fallen to be known to measure progress. Source: both sides of an adversary fall by up to
13 % before they wander."""

SOLVED = 0.95
"""The reward, of at most 1, from which on groups without signal are a solved task. Chosen."""

LARGE_CHANGE = 8.0
"""Times by which a learning rate that was changed on purpose may rise. Chosen: people multiply by 2
to 5; accidents by 10 and more."""

YOUNG_STEPS = 1000
"""Steps after which a run has something to go back to, whatever a log shows of it. Chosen."""

LEARNT = 0.95
"""The fraction of its first loss that a run must have come below to be worth going back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the instruction depends on besides the incident."""

    checkpoint: str | None = None
    """The newest checkpoint from before the onset, by its name; None if none is known."""
    recurs: bool = False
    """Whether it was at the same place before a restart."""
    changes: Sequence[str] = ()
    """What was changed on purpose around the onset, as announced or as code did it."""
    cause: AnyCause | None = None
    """Its cause, where it is named."""
    not_finite: Sequence[str] = ()
    """Signals other than the loss that have not been finite since."""
    undo_until: int | None = None
    """The step up to which `guard.undo()` takes a proposed rollback; None if none is open."""
    is_journal: bool = False
    """Whether the run wrote a journal of its own, which knows the checkpoints it saved."""
    num_scaled_down: int = 0
    """Gradients of the incident that the gate has scaled down."""
    has_responses: bool = True
    """Whether a policy answers prompts, as is known of a language model."""


def instruct(incident: Incident, around: Surroundings) -> Action:
    """Return the one thing to do, and why."""
    named, symptoms = incident.incident_class, set(incident.symptoms)
    if incident.end is not None and named in (IncidentClass.OPEN, IncidentClass.RECOVERING):
        return _wait("Nothing to do.", "Another incident began before it was over.")
    if symptoms <= HARMLESS:
        return _wait("Nothing to do for the weights.", "Only time was lost.")
    if incident.facts.was_left_behind and not around.recurs:
        return _wait("Nothing to do.", "The run has gone on from before it.")
    left_out = NOT_RESTORED & symptoms
    if left_out and not around.changes:
        return _after_resume(incident, is_mild=left_out <= MILD_RESUME)
    if PROVEN & symptoms and named in (IncidentClass.SILENT, IncidentClass.OPEN):
        return _act(ActionKind.STOP, "Stop", incident, around)
    if named in _QUIET:
        return _QUIET[named](incident, around)
    is_often_nonfinite = incident.facts.nonfinite_fraction >= OFTEN
    if incident.facts.started_again and named is not IncidentClass.DEAD and not is_often_nonfinite:
        return _wait(
            _unless_meant(
                f"the return to the first losses at step {incident.onset.step:,}", incident, around
            ),
            "The loss went back to where the run began, and falls as it did then.",
        )
    if around.changes and not _is_beyond_a_purpose(incident):
        return _wait(
            _unless_meant(f"the change at step {incident.onset.step:,}", incident, around),
            f"{around.changes[-1]}; {level_text(incident.facts)}.",
        )
    if around.cause is Cause.REWARD_BUG:
        return Action(
            kind=ActionKind.STOP,
            instruction="Stop and repair the reward; go on from now if the held-out score stands.",
            reason=f"{_capital(level_text(incident.facts))}.",
        )
    if named is IncidentClass.PLATEAU:
        return _act(ActionKind.STOP, "Stop", incident, around)
    if not (_is_told_by_loss(incident) or _has_large_rate(incident.facts)):
        return _wait(
            f"Compare an evaluation with one from before step {incident.onset.step:,}.",
            "This loss is not known to measure progress.",
        )
    if incident.facts.factor is not None:
        onset = incident.onset.step
        return Action(
            kind=ActionKind.STOP,
            instruction="Stop, find the factor, and compare an evaluation with one from before "
            f"step {onset:,}.",
            reason=f"{_capital(level_text(incident.facts))}.",
        )
    if named is IncidentClass.LINGERING:
        return _after_lingering(incident, around)
    return _act(ActionKind.STOP, "Stop", incident, around)


# What needs no act


def _after_kept_out(incident: Incident, around: Surroundings) -> Action:
    if is_still_kept_out(incident):
        # What is not finite may be in the weights, out of reach of the gate.
        return _wait(
            f"Look again at step {_next_look(incident):,}.",
            "Every bad step was discarded; no finite one has been applied since.",
        )
    return _wait("Nothing to do.", "Every bad step was discarded and never reached the weights.")


def _after_undo(incident: Incident, around: Surroundings) -> Action:
    updates = counted(incident.facts.undone_updates, "update")
    if incident.facts.is_undo_watched and incident.end is None:
        look = f"Nothing to do now; look again at step {_next_look(incident):,}."
        return _wait(look, f"{updates} undone; whether the loss returns cannot be told yet.")
    do = "Nothing to do."
    if around.cause is Cause.BIT_FLIP:
        do = "Test the memory of this device; nothing to do for the run."
    return _wait(do, f"{updates} undone; {level_text(incident.facts)}.")


def _after_recovery(incident: Incident, around: Surroundings) -> Action:
    if around.recurs:
        return _again(incident, around)
    if around.not_finite:
        since = f"has not been finite since step {incident.onset.step:,}"
        return _wait(f"Find out why {around.not_finite[0]} {since}.", "Only the loss is back.")
    return _wait("Nothing to do.", f"At step {incident.last.step:,} {level_text(incident.facts)}.")


def _while_recovering(incident: Incident, around: Surroundings) -> Action:
    facts, level = incident.facts, incident.facts.level
    steps = level.back_in if level else None
    reason = f"{_capital(level_text(facts))}, and the gap shrinks."
    if steps is None:
        return _wait("Wait: the newest records are back.", reason)
    left = facts.schedule.steps_left if facts.schedule else None
    if left is not None and level is not None and steps > left:
        # The gap shrinks by the same fraction in each step.
        rest = level.gap * (level.smallest / max(level.gap, level.smallest)) ** (left / steps)
        return _wait(f"Wait: about {digits(rest)} will be left when the schedule ends.", reason)
    return _wait(f"Wait: back in about {_round(steps):,} steps.", reason)


def _while_open(incident: Incident, around: Surroundings) -> Action:
    facts = incident.facts
    if not facts.is_measure:
        return _wait(
            f"Compare an evaluation with one from before step {incident.onset.step:,}.",
            "The loss of a policy or an adversary does not tell.",
        )
    look = f"ook again at step {_next_look(incident):,}."
    if around.changes and not facts.nonfinite_at_end and not _is_beyond_a_purpose(incident):
        meant = f"the change at step {incident.onset.step:,} was meant"
        return _wait(f"Nothing to do if {meant}; else l{look}", f"{around.changes[-1]}.")
    return _wait(f"L{look}", f"{_too_early(facts)}.")


def _after_silence(incident: Incident, around: Surroundings) -> Action:
    if around.recurs:
        return _again(incident, around)
    first, facts = incident.findings[0], incident.facts
    reason = f"{_capital(level_text(facts))}."
    if first.symptom == Symptom.FROZEN:
        part = first.signal.partition("/")[2] or "the model"
        return _wait(f"Nothing to do if {part} was frozen on purpose; else unfreeze it.", reason)
    if first.symptom == Symptom.NO_SIGNAL and facts.reward and SOLVED <= facts.reward.now <= 1:
        now = digits(facts.reward.now)
        return _wait(f"Nothing to do if the task is solved, with a reward of {now}.", reason)
    if first.symptom == Symptom.NO_SIGNAL:
        if first.signal == REWARD:
            return _wait("Check the reward function: the reward does not rise.", reason)
        return _wait("Check the prompts and the reward function: groups teach nothing.", reason)
    if first.symptom == Symptom.GRADIENT_SPIKE and around.num_scaled_down:
        gradients = counted(around.num_scaled_down, "gradient")
        return _wait(f"Nothing to do: the gate has scaled {gradients} down.", reason)
    if first.symptom == Symptom.REWARD_FELL:
        look = "Read some responses" if around.has_responses else "Look at what it does"
        return _wait(f"{look}; act if the reward stays down.", reason)
    if first.symptom == Symptom.HELD_OUT_ROSE:
        best = first.facts.get("best_step")
        where = "from" if best is None else f"of step {int(best):,},"
        return _wait(f"Keep the weights {where} where {first.signal} was lowest.", reason)
    follows = "the reward" if first.symptom in OF_POLICY or facts.reward is not None else "the loss"
    return _wait(f"Look at {first.signal}; act if {follows} follows.", reason)


_QUIET = {
    IncidentClass.KEPT_OUT: _after_kept_out,
    IncidentClass.RESTORED: _after_undo,
    IncidentClass.RECOVERED: _after_recovery,
    IncidentClass.RECOVERING: _while_recovering,
    IncidentClass.OPEN: _while_open,
    IncidentClass.SILENT: _after_silence,
}


# What needs one


def _after_lingering(incident: Incident, around: Surroundings) -> Action:
    facts, level = incident.facts, incident.facts.level
    is_quiet = SUDDEN.isdisjoint(incident.symptoms) and not _has_large_rate(facts)
    if level is not None and is_quiet and not _is_clear(level):
        return _wait(
            f"Compare an evaluation with one from before step {incident.onset.step:,}.",
            f"{_capital(level_text(facts))}, and it rose without a spike: that is mostly data.",
        )
    times = facts.schedule.times if facts.schedule else 1.0
    lower = " and lower the learning rate" if times > 3 else ""
    return _act(ActionKind.ROLL_BACK, "Roll back", incident, around, then=lower)


def _act(
    kind: ActionKind, verb: str, incident: Incident, around: Surroundings, then: str = ""
) -> Action:
    if around.recurs:
        return _again(incident, around)
    reason = f"{_capital(level_text(incident.facts))}."
    if incident.facts.has_undo_failed:
        updates = counted(incident.facts.undone_updates, "update")
        reason = f"{updates} undone, which has not helped. {reason}"
    stands_still = incident.facts.kept_out_at_end >= STANDSTILL_STEPS
    if stands_still:
        verb += ", as no update is applied,"
    target = _target(incident, around)
    if target is None:
        first = "as no update is applied; fix the cause" if stands_still else "fix the cause"
        if incident.incident_class is IncidentClass.COLLAPSED:
            look = "read responses" if around.has_responses else "look at what it does"
            first = f"{look} from step {incident.onset.step:,} on"
        return Action(
            kind=ActionKind.STOP, instruction=f"Stop, {first} and start again.", reason=reason
        )
    back = f"oll back to {target}{then}"
    if around.undo_until is not None:
        # The checkpoint is for a run that has ended meanwhile.
        call = f"Call guard.undo() by step {around.undo_until:,}, or r{back}."
        return Action(kind=kind, instruction=call, reason=reason)
    instruction = f"R{back}." if verb == "Roll back" else f"{verb} and r{back}."
    return Action(kind=kind, instruction=instruction, reason=reason)


def _again(incident: Incident, around: Surroundings) -> Action:
    target = _target(incident, around) or "the start"
    return Action(
        kind=ActionKind.ROLL_BACK,
        instruction=f"Go on from {target} with a learning rate 2 to 3 times lower.",
        reason="It came back at the same place after a restart.",
    )


def _after_resume(incident: Incident, *, is_mild: bool) -> Action:
    found = next(one for one in incident.findings if one.symptom in NOT_RESTORED)
    if is_mild:
        return _wait(
            "Nothing to do now; load it at the next resume.",
            "The weights are the saved ones; only the run cannot be repeated from here.",
        )
    return Action(
        kind=ActionKind.ROLL_BACK,
        instruction="Stop and resume from the same checkpoint again.",
        reason=f"The steps since the resume at step {found.step:,} start from a state that is not "
        "the saved one.",
    )


def _target(incident: Incident, around: Surroundings) -> str | None:
    """Return the state to go back to; None if the run had learnt nothing worth it."""
    level, start = incident.facts.level, incident.facts.start_loss
    if around.checkpoint is not None:
        return around.checkpoint
    if incident.incident_class is IncidentClass.PLATEAU and not incident.facts.records_before:
        return None  # it has been so since the start
    has_learnt = level is not None and start is not None and level.before < LEARNT * start
    is_young = incident.onset.step < YOUNG_STEPS  # a log may begin long after its run
    if incident.facts.records_before < PATIENCE and not has_learnt and is_young:
        return None
    if around.is_journal:
        return f"before step {incident.onset.step:,}; no checkpoint is known"
    return f"a checkpoint from before step {incident.onset.step:,}"


def _wait(instruction: str, reason: str) -> Action:
    return Action(kind=ActionKind.WAIT, instruction=instruction, reason=reason)


def _unless_meant(what: str, incident: Incident, around: Surroundings) -> str:
    target = _target(incident, around)
    return f"Nothing to do if {what} was meant{f'; else roll back to {target}' * bool(target)}."


# Conditions


def is_still_kept_out(incident: Incident) -> bool:
    """Return whether no finite step has been applied since the newest one that was kept out."""
    loss = incident.last.loss
    is_bad = loss is not None and not math.isfinite(loss)
    return is_bad and incident.end is None and incident.incident_class is IncidentClass.KEPT_OUT


def _is_clear(level: Level) -> bool:
    """Return whether a level is so much higher that data alone are no likely reason."""
    return level.gap > CLEAR_NOISE * level.noise or level.lost > CLEAR_LOST


def _is_told_by_loss(incident: Incident) -> bool:
    """Return whether the loss is known to measure progress, or what happened is beyond doubt."""
    facts = incident.facts
    if incident.incident_class in (IncidentClass.DEAD, IncidentClass.COLLAPSED):
        return True
    if facts.nonfinite_fraction >= OFTEN:
        return True
    level, start = facts.level, facts.start_loss
    if facts.has_direction is False:
        return False
    if level is None or start is None:
        return start is None or facts.times_start >= FAR_ABOVE_START
    if facts.has_direction is None and facts.times_start < FAR_ABOVE_START:
        return start - level.before > max(FELL * abs(start), FELL_NOISE * level.noise)
    if not 0 <= level.before < SMALL_SHARE * start:
        return True
    return level.gap >= GIVEN_BACK * (start - level.before)


def _is_beyond_a_purpose(incident: Incident) -> bool:
    """Return whether nobody would want what happened, whatever was changed on purpose."""
    facts = incident.facts
    if incident.incident_class in (IncidentClass.DEAD, IncidentClass.COLLAPSED):
        return True
    return _has_large_rate(facts)


def _has_large_rate(facts: Facts) -> bool:
    """Return whether the learning rate is as many times that from before as nobody would want."""
    return facts.schedule is not None and facts.schedule.times > LARGE_CHANGE


# Words


def level_text(facts: Facts) -> str:
    """Return where the loss is: "the loss is 5.42, 0.39 above its trend, for 228 steps"."""
    level, reward = facts.level, facts.reward
    if reward is not None and reward.is_gone:
        return f"the reward fell from {digits(reward.before)} to {digits(reward.now)}"
    if facts.kept_out_at_end >= STANDSTILL_STEPS:
        return f"no update has been applied in the last {facts.kept_out_at_end:,} steps"
    if facts.nonfinite_fraction >= OFTEN and facts.nonfinite_at_end < DEAD_RECORDS:
        return f"{100 * facts.nonfinite_fraction:.0f} % of the newest losses are not finite"
    if facts.nonfinite_at_end:
        many = facts.nonfinite_at_end > 1
        last = f"last {facts.nonfinite_at_end:,} losses are" if many else "last loss is"
        return f"the {last} not finite"
    if facts.is_frozen:
        return "the loss does not move any more"
    if facts.has_overflowed:
        return "no loss has come since the loss scale collapsed"
    if not facts.has_finite_state:
        return "a norm of the weights or of the optimizer's state is not finite"
    if facts.has_collapsed:
        return "the reward rose while the held-out reward fell"
    if level is None and reward is not None:
        return f"the reward is {digits(reward.now)} and was {digits(reward.before)}"
    if not facts.is_measure:
        return "a loss like this one does not tell"
    is_told_by_start = facts.never_learnt or (facts.is_loud and 0 < facts.times_start <= 1)
    if level is None and is_told_by_start and facts.start_loss is not None:
        now = digits(facts.times_start * facts.start_loss)
        return f"the loss is {now}, and was {digits(facts.start_loss)} at the start"
    if level is None:
        return "too few losses came before to say where it should be"
    now = f"the loss is {digits(level.now)}"
    if facts.factor is not None:
        times = f"{facts.factor:.2g} times what was expected"
        return f"{now}, {times}, and so is the gradient norm: what was learnt may still be there"
    if level.z <= BACK and level.course is not Course.GROWING:
        return f"{now}, {digits(level.expected)} expected"
    if level.gap <= level.smallest and level.course is not Course.GROWING:
        if level.z > ABOVE:  # the trend is too unsure to tell, the level before is not
            higher = digits(level.now - level.before)
            return f"{now}, {higher} above its level before, {_course_text(level, facts)}"
        within = f"a gap under {digits(level.smallest)} is within the noise"
        return f"{now}, {digits(level.expected)} expected; {within}"
    lost = f", {_lost_text(level)}" if level.lost > CLEAR_LOST else ""
    return f"{now}, {digits(level.gap)} above its trend{lost}, {_course_text(level, facts)}"


def _lost_text(level: Level) -> str:
    return f"with {min(100 * level.lost, 100):.0f} % of what was learnt lost"


def _course_text(level: Level, facts: Facts) -> str:
    since = f"{facts.steps:,} steps after the onset"
    if level.course is Course.GROWING:
        return f"and rises {since}"
    return f"{'and shrinking ' * (level.course is Course.SHRINKING)}{since}"


def _too_early(facts: Facts) -> str:
    if facts.nonfinite_at_end:
        return _capital(level_text(facts))
    if facts.level is None:
        return f"Only {counted(facts.records_before, 'record')} came before it"
    if facts.level.z <= 1:
        return "Too few records have come since"
    return f"{_capital(level_text(facts))}; where it will settle cannot be told yet"


def _next_look(incident: Incident) -> int:
    """Return the step at which it can be told what an open incident becomes."""
    facts = incident.facts
    stride = max(facts.steps / max(facts.records - 1, 1), 1.0)
    level = facts.level
    if level is None or facts.records < PATIENCE_IF_DOUBLED:
        records = float(PATIENCE_IF_DOUBLED)
    else:
        wanted = PATIENCE_IF_DOUBLED if level.is_doubled else PATIENCE
        records = min(max(wanted, RETURN_STEPS / stride), max(wanted, LONG_STEPS / stride))
    left = max(records - facts.records, 4.0) * stride
    return incident.last.step + _round(math.ceil(left))


def _round(steps: int) -> int:
    """Return a number of steps with one or two digits that count."""
    return max(int(float(f"{steps:.1g}" if steps < 100 else f"{steps:.2g}")), 1)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
