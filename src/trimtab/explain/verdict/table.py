"""The table: from the facts of an incident to its class.

reward of a policy gone                                           collapsed
non-finite losses or state at the end, or the loss stands still   dead
loss and gradient norm multiplied by one factor                   lingering
rising, or four times the start, or all that was learnt is gone   divergent
above, flat                                                       lingering
above, gap shrinking                                              recovering
ordinary, or too early to say, and
    damage was undone                                             restored
    every bad step was kept out of the weights                    kept out
    the run does not learn                                        plateau
    the loss itself raised no alarm, and is on its level          silent
ordinary                                                          recovered
too early to say                                                  open
"""

import math
from dataclasses import dataclass

from trimtab.core.incident_facts import Course, Facts, Level
from trimtab.core.incidents import IncidentClass

DEAD_RECORDS = 3
"""Non-finite losses in a row that have come to stay. Source: the playbook asks for more than one or
two; a single one is discarded."""

STANDSTILL_STEPS = 10
"""Steps in a row that were kept out of the weights from which on the run stands still, until one is
applied again. Source: a bad batch is one step, and a protected run ends by itself only after 100
(`live.max_nonfinite_steps`)."""

OFTEN = 0.25
"""The fraction of non-finite losses from which on they are frequent: roll back (the playbook says
"frequent" without a number; chosen)."""

BLOWN_UP = 4.0
"""A loss this many times the start is lost, whatever its course. Source: GrossLoss."""

WITHOUT_DOUBT = 20.0
"""The same where only a few records came before. Chosen: no batch is so hard."""

FAR_ABOVE_START = 2.0
"""A loss that stays this many times above the start has lost everything, and more. Chosen: losses
of policies and adversaries rise by a half at once."""

BACK, ABOVE = 1.0, 2.0
"""Standard errors beyond the tolerance up to which the loss is back, and from which it is above."""

FEW_BEFORE = 8
"""The second limit is doubled where only so many records came before."""

MIN_SINCE = 4
"""Fewer records since the onset say nothing about a course."""

RISE_STEPS, RISE_RECORDS, LONG_RISE_RECORDS = 100, 12, 64
"""Steps and records that a spike may rise before it is divergent, or records alone. Source: the
playbook's type 3; 12 records: one held-out run of the study."""

LOST = 0.9
"""The fraction of what was learnt whose loss makes a flat level divergent."""

PATIENCE, PATIENCE_IF_DOUBLED = 32, 12
"""Records before a flat loss is a new level; fewer if it is twice as high. Source: translation runs
of the tuning half snap back after 8 to 10 records at +35 to +110 %."""

LONG_STEPS = 2000
"""Steps after which the second is enough for any height."""

RETURNS, MAX_RETURN = 2, 128
"""Times the slowest return of the run's earlier spikes, and records at most, that a flat loss is
waited for. Chosen: no fact of a curve tells a snap-back from a new level, only the run's past."""

YOUNG_RECORDS, GROWN_RECORDS = 16, 128
"""With fewer records before it, an onset has no trend: after so many records, a loss under the
start is a run that has learnt. Chosen."""

RETURN_STEPS = 500
"""Steps in which the playbook's type 1 comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """A class, and how sure it is."""

    incident_class: IncidentClass
    certainty: float
    """From 0.5, as likely as not, to 1."""


def classify(facts: Facts) -> Classified:
    """Return the class that follows from the facts of an incident."""
    found = _classify(facts)
    is_mild = found.incident_class in _MILD
    is_undone = facts.undone_updates > 0 and not facts.has_undo_failed
    if is_undone and (is_mild or facts.is_undo_watched):
        return Classified(incident_class=IncidentClass.RESTORED, certainty=0.9)
    if facts.is_kept_out and is_mild:
        return Classified(incident_class=IncidentClass.KEPT_OUT, certainty=0.9)
    if facts.nonfinite_at_end and is_mild:
        return OPEN  # one or two non-finite losses: the next ones will say
    if not is_mild:
        return found
    if facts.never_learnt:
        return Classified(incident_class=IncidentClass.PLATEAU, certainty=0.8)
    if not facts.is_loud and not _has_left(facts):
        return Classified(incident_class=IncidentClass.SILENT, certainty=found.certainty)
    return found


OPEN = Classified(incident_class=IncidentClass.OPEN, certainty=0.5)

_MILD = (IncidentClass.RECOVERED, IncidentClass.RECOVERING, IncidentClass.OPEN)


def _has_left(facts: Facts) -> bool:
    """Return whether the loss is clearly above its level, although it raised no alarm."""
    level = facts.level
    return level is not None and level.z > ABOVE and level.gap > level.smallest


def _classify(facts: Facts) -> Classified:
    if facts.has_collapsed or (facts.reward is not None and facts.reward.is_gone):
        return Classified(incident_class=IncidentClass.COLLAPSED, certainty=0.9)
    if facts.kept_out_at_end >= STANDSTILL_STEPS:
        return Classified(incident_class=IncidentClass.DEAD, certainty=0.8)
    if facts.nonfinite_at_end >= DEAD_RECORDS:
        certainty = min(0.99, 0.8 + 0.05 * facts.nonfinite_at_end)
        return Classified(incident_class=IncidentClass.DEAD, certainty=certainty)
    if facts.is_frozen or facts.has_overflowed or not facts.has_finite_state:
        return Classified(incident_class=IncidentClass.DEAD, certainty=0.9)
    if facts.nonfinite_fraction >= OFTEN:
        return Classified(incident_class=IncidentClass.LINGERING, certainty=0.8)
    if facts.records < MIN_SINCE and facts.times_start <= BLOWN_UP:
        return OPEN
    if not facts.is_measure:
        return Classified(incident_class=IncidentClass.RECOVERED, certainty=0.7)
    if facts.level is None:
        return _classify_start(facts)
    return _classify_level(facts, facts.level)


def _classify_start(facts: Facts) -> Classified:
    """Return the class of an incident that has too few records before it: the start has to do."""
    if facts.times_start > BLOWN_UP:
        certainty = 0.9 if facts.times_start > WITHOUT_DOUBT else 0.6
        return Classified(incident_class=IncidentClass.DIVERGENT, certainty=certainty)
    has_come_back = facts.start_loss is not None and facts.is_loud and facts.times_start <= 1
    if facts.times_start <= 1 and (has_come_back or facts.records >= 2 * PATIENCE):
        return Classified(incident_class=IncidentClass.RECOVERED, certainty=0.6)
    return OPEN


def _classify_level(facts: Facts, level: Level) -> Classified:
    z = level.z
    sure = 0.5 + 0.5 * math.tanh(abs(z - (BACK + ABOVE) / 2) / 3)
    if facts.factor is not None:
        return Classified(incident_class=IncidentClass.LINGERING, certainty=0.8)
    is_short = facts.records < MIN_SINCE or facts.records_before <= MIN_SINCE
    has_blown_up = facts.records >= 2 and facts.times_start > BLOWN_UP and z > ABOVE
    if has_blown_up and not level.is_back_just_now:
        is_sure = facts.times_start > WITHOUT_DOUBT or not is_short
        return Classified(incident_class=IncidentClass.DIVERGENT, certainty=0.9 if is_sure else 0.6)
    if facts.records < MIN_SINCE:
        return OPEN
    is_young = facts.records_before < YOUNG_RECORDS and facts.records >= GROWN_RECORDS
    if is_young and facts.times_start < 1 and level.course is not Course.GROWING:
        return Classified(incident_class=IncidentClass.RECOVERED, certainty=0.6)
    evaluation = facts.evaluation
    if z <= BACK and not (level.course is Course.GROWING and z > 0):
        if evaluation is not None and evaluation.is_above and facts.records > PATIENCE:
            return Classified(incident_class=IncidentClass.LINGERING, certainty=0.6)
        sure *= 0.7 if is_short else 1.0
        return Classified(incident_class=IncidentClass.RECOVERED, certainty=sure)
    is_late = (facts.steps > RISE_STEPS and facts.records >= RISE_RECORDS) or (
        facts.records > LONG_RISE_RECORDS
    )
    if level.course is Course.GROWING:
        if is_late or level.lost > LOST:
            return Classified(incident_class=IncidentClass.DIVERGENT, certainty=sure)
        return OPEN
    has_ended = facts.schedule is not None and facts.schedule.has_ended
    if level.course is Course.SHRINKING and not has_ended:
        return Classified(incident_class=IncidentClass.RECOVERING, certainty=sure)
    if level.is_back_just_now:
        return Classified(incident_class=IncidentClass.RECOVERING, certainty=0.6)
    is_clear = level.gap > level.smallest
    if level.lost > LOST and is_late and is_clear and not level.is_learning:
        return Classified(incident_class=IncidentClass.DIVERGENT, certainty=sure)
    if facts.times_start > FAR_ABOVE_START and facts.records >= PATIENCE_IF_DOUBLED:
        return Classified(incident_class=IncidentClass.DIVERGENT, certainty=min(sure, 0.8))
    if z < ABOVE * (1 + FEW_BEFORE / facts.records_before):
        if z > ABOVE and is_clear:
            return OPEN
        return Classified(incident_class=IncidentClass.RECOVERED, certainty=0.5)
    if not (_was_waited_for(facts, level, is_late=is_late) or has_ended):
        return OPEN
    if evaluation is not None and evaluation.is_back:  # the data became harder
        return Classified(incident_class=IncidentClass.RECOVERED, certainty=0.6)
    return Classified(incident_class=IncidentClass.LINGERING, certainty=sure)


def _was_waited_for(facts: Facts, level: Level, *, is_late: bool) -> bool:
    """Return whether a flat loss has been above its level for long enough to be a new one."""
    if facts.records < min(RETURNS * facts.slowest_return, MAX_RETURN):
        return False  # spikes of this run take longer than that to come back
    is_far = level.is_doubled or level.lost > LOST
    if facts.records >= PATIENCE_IF_DOUBLED and facts.steps >= LONG_STEPS:
        return True
    if facts.records < (PATIENCE_IF_DOUBLED if is_far else PATIENCE):
        return False
    if level.rise_steps > RISE_STEPS:
        return True  # what rises for so long is no spike
    return facts.steps >= RETURN_STEPS or (level.return_excluded and is_late)
