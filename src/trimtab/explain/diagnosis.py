"""Diagnosis: everything that is said about one incident, as one value.

A rule set explains an incident (`make_diagnosis`), then advises on it (`action`). Reports, pages,
`incident.json` and `--json` all show this value.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimtab.core.actions import Action, ActionKind
from trimtab.core.causes import AnyCause, Hypothesis
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.jsonable import to_jsonable
from trimtab.core.text import clause, printable
from trimtab.core.token_losses import SecondMode, find_second_mode
from trimtab.explain.causes.conclusions import Conclusion
from trimtab.explain.causes.ranking import Ranking
from trimtab.explain.context import (
    IncidentContext,
    changes_near,
    checkpoint_before,
    has_responses,
    not_finite_since,
    num_scaled_down,
    undo_until,
)
from trimtab.explain.measures import (
    BatchRepeats,
    Cost,
    LayerMap,
    LayerMove,
    Symptoms,
    compute_cost,
    find_repeated_batch,
    first_movers,
    measure,
)
from trimtab.explain.textbook.tree import Walk
from trimtab.explain.verdict.instruction import is_still_kept_out
from trimtab.journal.batches.batch_report import BatchReport

NOTHING_TO_DO = "Nothing to do."

_DETAILS = re.compile(r": |; |, and |, (?=by )")
"""What ends the first part of a sentence about a cause: its numbers follow."""

NO_ADVICE = Action(
    kind=ActionKind.WAIT, instruction="None.", reason="The incident was explained, not advised on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One incident: what it was, why it happened as far as is known, and what to do about it."""

    incident: Incident
    symptoms: Symptoms
    moves: tuple[LayerMove, ...]
    """The layers that left their past and the other layers, first one first."""
    layer_map: LayerMap | None
    """Where the first of them shows, over layers and steps."""
    second_mode: SecondMode | None
    """Token losses far from those of most tokens."""
    repeated_batch: BatchRepeats | None
    """The batch that was served several times, if one was."""
    walk: Walk | None
    """The questions of a decision tree; None if the rules weigh evidence."""
    ranking: Ranking | None
    """The causes by evidence; None if the rules walk a tree."""
    hypotheses: tuple[Hypothesis, ...]
    """The cause is among them, and first if it is supported."""
    cause: AnyCause | None
    root_cause: str
    """One sentence, or why the cause is not known."""
    remedy: str
    """The smallest change that fixes it."""
    lesson: str
    cost: Cost
    checkpoint: str | None = None
    """The newest checkpoint from before the onset, by its name; None if none is known."""
    changes: tuple[str, ...] = ()
    """What was changed on purpose around the onset."""
    not_finite: tuple[str, ...] = ()
    """Signals that have not been finite since, although the loss is back."""
    undo_until: int | None = None
    """The step up to which `guard.undo()` takes a proposed rollback; None if none is open."""
    is_journal: bool = False
    """Whether the run wrote a journal of its own, which knows the checkpoints it saved."""
    num_scaled_down: int = 0
    """Gradients of the incident that the gate has scaled down."""
    other_cause: str = ""
    """The cause in a few words, where it is known and none of the catalogue."""
    has_responses: bool = True
    """Whether a policy answers prompts, as a language model does."""
    action: Action = NO_ADVICE
    """The one thing to do."""
    batch: BatchReport | None = None
    """Its sequences and tokens, if the run kept them."""
    dismissed: str = ""
    """Who has noted that it needs nothing; empty if nobody has."""
    dismissed_because: str = ""
    """The text of that note."""

    @property
    def dismissal(self) -> str:
        """Who has dismissed it, and why, in a few words; empty if nobody has."""
        return self.dismissed and f"dismissed by {self.dismissed}: {self.dismissed_because}"

    @property
    def incident_class(self) -> IncidentClass:
        """The class of the incident."""
        return self.incident.incident_class

    @property
    def needs_nothing(self) -> bool:
        """Whether it is over, or nobody has to do or watch anything."""
        is_quiet = self.incident_class.severity <= IncidentClass.RECOVERED.severity
        is_quiet = is_quiet and self.action.kind is ActionKind.WAIT and not self.not_finite
        is_quiet = is_quiet and not is_still_kept_out(self.incident)
        is_watched = self.incident.facts.is_undo_watched and self.incident.end is None
        is_quiet = is_quiet and not is_watched
        return bool(self.dismissed) or is_quiet

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether its instruction is to do nothing, without a condition."""
        return bool(self.dismissed) or self.action.instruction == NOTHING_TO_DO

    @property
    def in_short(self) -> str:
        """What happened, as a part of a sentence: its cause if that is named, else its symptom."""
        if self.cause is not None:
            return clause(_DETAILS.split(self.root_cause, maxsplit=1)[0])
        return f"{self.incident.main_symptom} at step {self.incident.onset.step:,}"

    @property
    def severity(self) -> tuple[int, int]:
        """What sorts incidents from the least to the most severe: what to do, then the class."""
        if self.dismissed:
            return -1, 0
        return list(ActionKind).index(self.action.kind), self.incident_class.severity

    def __repr__(self) -> str:
        incident, cause = self.incident, self.cause
        what = f"incident {incident.number} at step {incident.onset.step:,}, {self.incident_class}"
        why = cause.label if cause else "cause not known"
        return printable(f"<Diagnosis of {what}; {why}; {self.action.kind.value}>")

    def to_dict(self, packages: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the diagnosis as JSON values.

        `packages` has the package of each detector that is not trimtab's, by the detector's name.
        """
        packages = packages or {}
        # The map of layers is for a table, and a journal holds its signals; the hypotheses hold
        # what matters of the ranking.
        shown: dict[str, Any] = to_jsonable(replace(self, layer_map=None, ranking=None))
        for name in ("layer_map", "ranking", "not_finite", "other_cause", "has_responses"):
            del shown[name]
        for name in ("num_scaled_down", "undo_until", "is_journal"):
            del shown[name]
        shown["cause"] = _cause(self.cause)
        for hypothesis, part in zip(self.hypotheses, shown["hypotheses"], strict=True):
            part["cause"] = _cause(hypothesis.cause)
        for finding, part in zip(
            self.incident.findings, shown["incident"]["findings"], strict=True
        ):
            part["package"] = packages.get(finding.detector) or "trimtab"
        if self.walk is not None:
            del shown["walk"]["leaf"]  # root_cause, remedy and lesson hold what it says
        if self.batch is not None:
            for part in shown["batch"]["rows"]:
                del part["token_ids"], part["text"]  # batch.json holds them
        return shown


Explain = Callable[[IncidentContext], Diagnosis]
"""Finds the cause of an incident: the part of a diagnosis in which rule sets differ."""


def make_diagnosis(
    context: IncidentContext,
    conclusion: Conclusion,
    hypotheses: tuple[Hypothesis, ...],
    *,
    walk: Walk | None = None,
    ranking: Ranking | None = None,
) -> Diagnosis:
    """Put what a rule set concludes beside what is measured for every incident.

    Args:
        context: The incident.
        conclusion: Its cause, and what to do about it.
        hypotheses: The causes that were considered.
        walk: The questions of a tree, if one was walked.
        ranking: The causes by evidence, if they were ranked.
    """
    moves, layer_map = first_movers(context.block, context.onset_row)
    return Diagnosis(
        incident=context.incident,
        symptoms=measure(context),
        moves=moves,
        layer_map=layer_map,
        second_mode=find_second_mode(context.block, context.onset_row, context.last_row),
        repeated_batch=find_repeated_batch(context),
        walk=walk,
        ranking=ranking,
        hypotheses=hypotheses,
        cause=conclusion.cause,
        root_cause=conclusion.root_cause,
        remedy=conclusion.remedy,
        lesson=conclusion.lesson,
        other_cause=conclusion.other_cause,
        cost=compute_cost(context),
        checkpoint=checkpoint_before(context),
        changes=tuple(changes_near(context)),
        not_finite=tuple(not_finite_since(context)),
        has_responses=has_responses(context),
        num_scaled_down=num_scaled_down(context),
        undo_until=undo_until(context),
        is_journal=context.facts.ranks is not None,
    )


def _cause(cause: AnyCause | None) -> dict[str, str] | None:
    return {"id": cause.id, "title": cause.title} if cause else None
