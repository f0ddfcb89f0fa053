"""Reasons: what was asked about an incident, what decided, and what would."""

from collections.abc import Iterator

from trimtab.core.causes import Standing
from trimtab.explain.causes.by_evidence import would_decide
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.check import CheckResult, Outcome
from trimtab.explain.evidence.observations import ALL_OBSERVATIONS
from trimtab.report.escaping import escape_markdown

MIN_RUNNER_UP = 0.1
"""A second cause that is less probable is not shown."""

_MAX_DECIDING = 6


def percent(probability: float) -> str:
    """A probability to the nearest 10 %: the lab's measurement is not finer."""
    if probability > 0.9:
        return "over 90 %"
    return "under 5 %" if probability < 0.05 else f"about {10 * round(10 * probability)} %"


def certainty(diagnosis: Diagnosis) -> float | None:
    """How probable the named cause is; None if it was not weighed, as in the textbook's tree."""
    first = diagnosis.hypotheses[0] if diagnosis.hypotheses else None
    if first is None or first.cause is None or first.cause != diagnosis.cause:
        return None
    return first.probability


def is_doubtful(diagnosis: Diagnosis) -> bool:
    """Whether the cause is only the best guess."""
    is_weighed = certainty(diagnosis) is not None
    return is_weighed and diagnosis.hypotheses[0].standing is not Standing.SUPPORTED


def cause_text(diagnosis: Diagnosis) -> str:
    """The cause in a sentence, with how certain it is, where that is known."""
    probability = certainty(diagnosis)
    if probability is None:
        return diagnosis.root_cause
    doubt = "not certain, " if is_doubtful(diagnosis) else ""
    return f"{doubt}{percent(probability)}: {diagnosis.root_cause}"


def short_cause(diagnosis: Diagnosis) -> str:
    """The id and title of the cause, with how certain it is, where that is known."""
    if diagnosis.cause is None:
        return "not known"
    probability = certainty(diagnosis)
    said = "" if probability is None else f", {percent(probability)}"
    return f"{diagnosis.cause.id} {diagnosis.cause.title}{said}"


def fix_text(diagnosis: Diagnosis) -> str:
    """The fix, with a condition where the cause is only the best guess."""
    remedy = diagnosis.remedy
    return f"If so, {remedy[:1].lower()}{remedy[1:]}" if is_doubtful(diagnosis) else remedy


def asked(diagnosis: Diagnosis) -> Iterator[tuple[str, str, CheckResult]]:
    """Everything that was asked: its id, the question, and the answer."""
    if diagnosis.walk is not None:
        for answer in diagnosis.walk.answers:
            yield answer.id, answer.question, answer.result
    if diagnosis.ranking is not None:
        for id, result in diagnosis.ranking.results.items():
            yield id, ALL_OBSERVATIONS[id].statement, result


def deciding_lines(diagnosis: Diagnosis, count: int) -> list[str]:
    """What decided, the heaviest first; the yes answers if no cause was named by evidence."""
    ranking = diagnosis.ranking
    if ranking is None or ranking.first.cause is None:
        seen = [r.observation for _, _, r in asked(diagnosis) if r.outcome is Outcome.YES]
        return list(dict.fromkeys(seen))[:count]
    return [
        f"{ALL_OBSERVATIONS[id].statement}: {ranking.results[id].observation}"
        for id in ranking.deciding(count)
    ]


def runner_up(diagnosis: Diagnosis) -> str:
    """The second cause, if it is not negligible, and what would decide between it and the first."""
    ranking = diagnosis.ranking
    if ranking is None or ranking.first.cause is None or len(ranking.candidates) < 2:
        return ""
    second = ranking.candidates[1]
    if second.cause is None or second.probability < MIN_RUNNER_UP:
        return ""
    said = f"{percent(second.probability)}: {second.cause.id} {second.cause.title}"
    return f"{said}; {would_decide(ranking)}"


def hypotheses_section(diagnosis: Diagnosis) -> Iterator[str]:
    """The hypotheses with their evidence, as Markdown."""
    for place, hypothesis in enumerate(diagnosis.hypotheses, start=1):
        cause = f"{hypothesis.cause.id} {hypothesis.cause.title}: " if hypothesis.cause else ""
        share = hypothesis.probability
        standing = hypothesis.standing if share is None else percent(share)
        yield f"{place}. **{standing}**: {cause}{hypothesis.statement}."
        for item in hypothesis.evidence:
            weight = "" if item.weight is None else f" ({item.weight:+.1f})"
            seen = f"{escape_markdown(item.signal)}: {escape_markdown(item.observation)}"
            yield f"   - {seen}{weight}"
    if diagnosis.ranking is not None:
        yield ""
        yield (
            "In brackets: how much an observation says for (+) or against (-) the cause, as a log "
            "likelihood ratio measured in the lab."
        )


def discriminating_section(diagnosis: Diagnosis) -> Iterator[str]:
    """What decided between the hypotheses, and what would, as Markdown."""
    ranking = diagnosis.ranking
    if ranking is None:
        yield from _discriminating_by_tree(diagnosis)
        return
    for line in deciding_lines(diagnosis, _MAX_DECIDING):
        yield f"- {escape_markdown(line)}"
    if ranking.first.cause is None:
        yield "- Nothing that was seen speaks for a known cause."
    else:
        second = runner_up(diagnosis)
        if second:
            yield f"- {escape_markdown(second)}."


def _discriminating_by_tree(diagnosis: Diagnosis) -> Iterator[str]:
    hypotheses = diagnosis.hypotheses
    decided = False
    for place, hypothesis in enumerate(hypotheses, start=1):
        for item in hypothesis.evidence:
            if item.favors is not None:
                decided = True
                way = "favors" if item.favors else "speaks against"
                seen = f"{escape_markdown(item.signal)}: {escape_markdown(item.observation)}"
                yield f"- {seen}: {way} H{place}."
    if not decided:
        yield "None of the signals that could decide between the hypotheses was recorded."
    undecided = [
        (place, item.signal)
        for place, hypothesis in enumerate(hypotheses, start=1)
        if hypothesis.standing is Standing.OPEN
        for item in hypothesis.evidence
    ]
    for place, signal in undecided:
        yield f"- {escape_markdown(signal)} was not recorded; it would decide H{place}."


def questions_section(diagnosis: Diagnosis) -> Iterator[str]:
    """Everything that was asked, as Markdown; of the observations, those that were made."""
    walk = diagnosis.walk
    if walk is not None:
        yield "| question | answer | observed | next |"
        yield "| --- | --- | --- | --- |"
        for answer in walk.answers:
            seen = escape_markdown(answer.result.observation)
            question = f"{answer.id} {answer.question}"
            yield f"| {question} | {answer.result.outcome} | {seen} | {answer.goes_to} |"
        return
    answers = list(asked(diagnosis))
    yield "| observation | seen | value |"
    yield "| --- | --- | --- |"
    for _, statement, result in answers:
        if result.outcome.is_answer:
            yield f"| {statement} | {result.outcome} | {escape_markdown(result.observation)} |"
    for outcome in (Outcome.NOT_RECORDED, Outcome.TOO_FEW):
        names = sorted({result.signal for *_, result in answers if result.outcome is outcome})
        if names:
            yield ""
            yield f"{outcome.value.capitalize()}: {', '.join(map(escape_markdown, names))}."
