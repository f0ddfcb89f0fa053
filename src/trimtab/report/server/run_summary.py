"""One run as a line of the fleet: its state, its open incidents, whether it needs attention."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.core.incidents import SEVERE, Transition
from trimtab.core.signals import CLOCK, LOSS, STEP_SECONDS, TOKENS_PER_SECOND
from trimtab.explain.evidence.check import number
from trimtab.report.server.run_feed import RunFeed

SILENT_SECONDS = 120.0
"""A run without a record for longer, and for ten of its steps, needs a look. Source: evaluations
and checkpoints of small runs take up to a minute."""

_OVER = frozenset({Transition.CLOSED, Transition.ROLLED_BACK, Transition.REBASELINED})
_BAD_ENDS = ("raised", "could not start")
"""How an end begins that its loop did not want."""

ORDER = ("alarm", "silent", "damaged", "watch", "running", "ended")
"""Who needs attention first."""


def is_open(facts: Mapping[str, Any]) -> bool:
    """Whether an incident was open when it was last written."""
    return facts.get("transition") not in _OVER


def summarize(feed: RunFeed, id: str, total_steps: int | None, now: float) -> dict[str, Any]:
    """The line of a run as JSON values."""
    open_ones = [facts for facts in feed.incidents.values() if is_open(facts)]
    state, why = _state(feed, open_ones, now)
    kept = max(feed.num_records - feed.num_lost - feed.num_nonfinite * (feed.num_nonfinite > 1), 0)
    clock = feed.latest.get(CLOCK)
    return {
        "id": id,
        "name": feed.name,
        "state": state,
        "order": ORDER.index(state),
        "why": why,
        "step": feed.last_step if feed.num_records else None,
        "loss": number(feed.latest[LOSS]) if LOSS in feed.latest else "",
        "goodput": f"{100 * kept / feed.num_records:.1f} %" if feed.num_records else "",
        "open": len(open_ones),
        "incidents": len(feed.incidents),
        "speed": f"{feed.latest[TOKENS_PER_SECOND]:,.0f}"
        if TOKENS_PER_SECOND in feed.latest
        else "",
        "eta": _eta(feed, total_steps) if feed.ended is None else "",
        "clock": clock,
    }


def statistics(feeds: Iterable[RunFeed]) -> list[dict[str, Any]]:
    """Incidents of all runs by cause, the most frequent first."""
    counts: Counter[str] = Counter()
    runs: dict[str, set[str]] = {}
    open_ones: Counter[str] = Counter()
    for feed in feeds:
        for facts in feed.incidents.values():
            cause = str(facts.get("cause") or "not known")
            counts[cause] += 1
            open_ones[cause] += is_open(facts)
            runs.setdefault(cause, set()).add(feed.name)
    return [
        {"cause": cause, "incidents": count, "runs": len(runs[cause]), "open": open_ones[cause]}
        for cause, count in counts.most_common(30)
    ]


def _state(feed: RunFeed, open_ones: list[dict[str, Any]], now: float) -> tuple[str, str]:
    """One of ORDER, and why."""
    if feed.error is not None:
        return "alarm", f"its journal cannot be read: {feed.error}"
    if feed.exit is not None and feed.ended is not None:
        return "alarm", f"has ended itself: {feed.exit.reason}"
    if feed.ended is not None and feed.ended.startswith(_BAD_ENDS):
        return "alarm", f"ended: {feed.ended}"
    worst = _worst(open_ones)
    if feed.ended is None and worst is not None:
        return ("alarm" if _is_severe(worst) else "watch"), _incident_text(worst)
    if feed.num_nonfinite > 1:
        return "alarm", f"the last {feed.num_nonfinite:,} losses are not finite"
    silence = now - feed.latest.get(CLOCK, now)
    usual = feed.latest.get(STEP_SECONDS, 0.0)
    if feed.ended is None and silence > max(SILENT_SECONDS, 10 * usual):
        return "silent", f"no record for {age_text(silence)}; no end was written"
    if feed.damage:
        return "damaged", feed.damage[0]
    if feed.ended is not None:
        severe = [facts for facts in feed.incidents.values() if _is_severe(facts)]
        return "ended", _incident_text(severe[-1]) if severe else feed.ended
    return "running", ""


def _worst(open_ones: list[dict[str, Any]]) -> dict[str, Any] | None:
    severe = [facts for facts in open_ones if _is_severe(facts)]
    return (severe or open_ones)[-1] if open_ones else None


def _is_severe(facts: Mapping[str, Any]) -> bool:
    """Whether it is of a severe class, or of none yet."""
    return facts.get("incident_class") in SEVERE and is_open(facts)


def _incident_text(facts: Mapping[str, Any]) -> str:
    symptoms = facts.get("symptoms")
    what = symptoms[0] if isinstance(symptoms, list) and symptoms else "incident"
    kind = facts.get("incident_class") or "open"
    cause = f"; {facts['cause']}" if facts.get("cause") else ""
    return f"{what} since step {facts.get('onset')}, {kind}{cause}"


def _eta(feed: RunFeed, total_steps: int | None) -> str:
    seconds = feed.latest.get(STEP_SECONDS)
    if total_steps is None or seconds is None or not seconds > 0:
        return ""
    return age_text(max(total_steps - 1 - feed.last_step, 0) * seconds)


def age_text(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
