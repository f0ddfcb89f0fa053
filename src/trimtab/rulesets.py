"""Rule sets: which detectors judge a run, and how incidents are closed, explained and advised on.

A rule set is a value. A variant of ours is one line:

    dataclasses.replace(TRIMTAB, name="mine", make_detectors=my_detectors)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.core.actions import Action
from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.detect.textbook import TEXTBOOK_THRESHOLDS, TextbookThresholds, textbook_detectors
from trimtab.detect.trimtab_detectors import trimtab_detectors
from trimtab.explain.causes.by_evidence import explain_by_evidence
from trimtab.explain.diagnosis import Diagnosis, Explain
from trimtab.explain.incidents.rules import IncidentRules
from trimtab.explain.textbook.advice import advise_by_textbook
from trimtab.explain.textbook.causes import explain_by_tree
from trimtab.explain.textbook.closing import TextbookIncidents
from trimtab.explain.verdict.instruction import Surroundings, instruct


class Advise(Protocol):
    """Chooses the action for a diagnosed incident."""

    def __call__(self, diagnosis: Diagnosis, *, recurs: bool) -> Action:
        """Return the action; `recurs` if the incident came at the same place before a restart."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """One way to judge a run, from its detectors to its advice."""

    name: str
    make_detectors: Callable[[Config], Sequence[Detector]]
    make_incidents: Callable[[Config], IncidentRules]
    """When an incident begins, which class it gets, and when it is over."""
    explain: Explain
    """How the cause of an incident is found."""
    advise: Advise


def _advise(diagnosis: Diagnosis, *, recurs: bool) -> Action:
    around = Surroundings(
        checkpoint=diagnosis.checkpoint,
        recurs=recurs,
        changes=diagnosis.changes,
        cause=diagnosis.cause,
        not_finite=diagnosis.not_finite,
        has_responses=diagnosis.has_responses,
        num_scaled_down=diagnosis.num_scaled_down,
        undo_until=diagnosis.undo_until,
        is_journal=diagnosis.is_journal,
    )
    return instruct(diagnosis.incident, around)


TRIMTAB = RuleSet(
    name="trimtab",
    make_detectors=trimtab_detectors,
    make_incidents=lambda config: IncidentRules(config.detect.objective),
    explain=explain_by_evidence,
    advise=_advise,
)
"""Trimtab's rules (docs/detection.md)."""


def textbook_rules(thresholds: TextbookThresholds = TEXTBOOK_THRESHOLDS) -> RuleSet:
    """Return the rules of the textbook, with its thresholds or others."""
    return RuleSet(
        name="textbook",
        make_detectors=lambda config: textbook_detectors(thresholds),
        make_incidents=lambda config: TextbookIncidents(thresholds),
        explain=explain_by_tree,
        advise=advise_by_textbook,
    )


TEXTBOOK = textbook_rules()
"""The decision tree of the textbooks as it stands: the baseline to beat."""

RULE_SETS: Mapping[str, RuleSet] = {rules.name: rules for rules in (TRIMTAB, TEXTBOOK)}
"""The rule sets that a config or a command can name."""


def rule_set(name: str) -> RuleSet:
    """Return the rule set of this name; raises ConfigError if there is none."""
    if name not in RULE_SETS:
        raise ConfigError(f"unknown rule set {name!r}; choose from {', '.join(RULE_SETS)}")
    return RULE_SETS[name]
