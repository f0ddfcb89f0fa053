"""From an incident, the records and the settings to the situation that the ladder decides upon."""

import dataclasses
from collections.abc import Sequence

from trimtab.core.block import Record
from trimtab.core.findings import Symptom
from trimtab.core.incidents import Incident
from trimtab.decide.costs import certainty_of
from trimtab.decide.situation import SettingDifference, Situation
from trimtab.decide.suspects import find_differences
from trimtab.decide.symptoms import Family, family_of, traits_of
from trimtab.live.recover.decide import evidence
from trimtab.live.recover.decide.run_view import RunView


def situation_of(
    incident: Incident,
    records: Sequence[Record],
    view: RunView,
    *,
    probe: float | None,
    probe_waited: int,
    planned_changes: Sequence[int],
) -> Situation:
    """What is known about an incident at this boundary, without what was tried before."""
    found = evidence.alarms(incident)
    symptoms = tuple(dict.fromkeys(finding.symptom for finding in found))
    names = evidence.signals_of(found)
    family = family_of(symptoms)
    deciding = [one for one in found if traits_of(one.symptom).family is family]
    onset = evidence.onset_of(incident)
    in_a_row, recently = evidence.count_bad(records)
    excess = evidence.loss_excess(records, onset)
    situation = Situation(
        incident=incident.number,
        step=view.step,
        onset=onset,
        waited=view.step - found[0].step,
        symptoms=symptoms,
        signals=names,
        is_dated=all(one.detector in evidence.DATED_DETECTORS for one in deciding),
        batch_was_odd=evidence.oddity(records, onset).is_odd or evidence.has_odd_tokens(incident),
        bad_in_a_row=in_a_row,
        bad_recently=recently,
        probe=probe,
        probe_waited=probe_waited,
        loss_excess=None if excess is None else excess[0],
        loss_noise=None if excess is None else excess[1],
        slope=evidence.slope(records, onset),
    )
    differences = differences_of(situation, view, planned_changes)
    certainty = max(finding.confidence for finding in found) * certainty_of(
        has_fact=any(traits_of(one.symptom).is_fact for one in deciding),
        num_signals=len(names),
        has_difference=bool(differences),
    )
    return dataclasses.replace(situation, differences=differences, certainty=certainty)


def differences_of(
    situation: Situation, view: RunView, planned_changes: Sequence[int]
) -> tuple[SettingDifference, ...]:
    """The settings that differ from those of the last healthy snapshot."""
    before, kept = situation.onset - situation.margin, view.settings_at()
    return find_differences(
        [settings for settings in kept if settings.step <= before],
        view.settings(),
        with_rate=situation.family is Family.RATE,
        later=[s for s in kept if s.step > before]
        if Symptom.LR_RISING in situation.symptoms
        else (),
        planned_changes=planned_changes,
    )
