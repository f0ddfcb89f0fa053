"""A reader of post-mortems, who knows only the text: what contradicts itself, by rule.

Each rule stands for something that a reader has found in a document: two ends of one incident, a
loss that "did not recover" and is lower than before, a check beyond the end of the run.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

NUMBER = r"-?(?:\d[\d,]*\.?\d*(?:e[+-]?\d+)?|nan|inf)"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A post-mortem as Markdown, and the run that it is about."""

    text: str
    last_step: int
    signals: frozenset[str] = frozenset()
    """Signals that were recorded."""
    rows: dict[str, str] = field(init=False)
    """Two-column tables: name to value."""

    def __post_init__(self) -> None:
        plain = re.sub(r"\\([^\w\s])", r"\1", self.text)
        object.__setattr__(self, "text", plain)
        rows = dict(re.findall(r"(?m)^\| ([^|]+?) \| ([^|]*?) \|$", plain))
        object.__setattr__(self, "rows", rows)

    def section(self, *titles: str) -> str:
        """Return the text under the first of these headings that there is."""
        for title in titles:
            found = re.search(rf"(?ms)^## (?:\d )?{title}\n(.*?)(?=^## |\Z)", self.text)
            if found:
                return found[1].strip()
        return ""

    def number(self, *names: str) -> float | None:
        """Return the number that begins one of these rows."""
        for name in names:
            found = re.match(NUMBER, self.rows.get(name, ""))
            if found:
                return float(found[0].replace(",", ""))
        return None


Rule = Callable[[Document], Iterator[str]]


def two_ends(document: Document) -> Iterator[str]:
    """One incident has one end and one length."""
    ends = {
        found.replace(",", "")
        for pattern in (
            rf"(?m)^\| when \| steps {NUMBER} to ({NUMBER})",
            rf"trajectory at step ({NUMBER})",
            rf"ended at step ({NUMBER})",
        )
        for found in re.findall(pattern, document.text)
    }
    lengths = set(
        re.findall(
            rf"({NUMBER}) records? long|trajectory at step {NUMBER}, after ({NUMBER}) records?",
            document.text,
        )
    )
    if len(ends) > 1:
        yield f"ends at steps {sorted(ends)}"
    if len({a or b for a, b in lengths}) > 1:
        yield f"is {sorted(a or b for a, b in lengths)} records long"


def lost_and_lower(document: Document) -> Iterator[str]:
    """What is lost is not lower than before, unless it stands still."""
    if "does not move any more" in document.text:
        return
    before = document.number("loss before (average over 50 records)")
    said = re.search(r"did not recover|Type 3|weights are lost|does not come back", document.text)
    for records in (50, 500):
        after = document.number(f"loss {records} records after the peak")
        if said and before is not None and after is not None and after <= before:
            yield f"{said[0]!r}, but the loss is {after} after {before}"


def over_a_limit_that_it_is_under(document: Document) -> Iterator[str]:
    for cells in re.findall(r"(?m)^\|((?: [^|]* \|){7})$", document.text):
        step, _, signal, value, expected, limit, _ = (c.strip() for c in cells.split("|")[:-1])
        if not step.isdigit() or not (value and expected and limit):
            continue
        found, usual, most = (float(one) for one in (value, expected, limit))
        if all(map(math.isfinite, (found, usual, most))) and (found - most) * (most - usual) < 0:
            yield f"{signal} {value} is not beyond its limit {limit}, {expected} expected"


def past_the_end(document: Document) -> Iterator[str]:
    """Nothing is checked at a step that the run does not have."""
    text = document.section("Verification")
    for found in re.findall(rf"(?:past|to|until) step ({NUMBER})", text):
        if float(found.replace(",", "")) > document.last_step:
            yield f"step {found} of a run that ends at {document.last_step}"


def missing_and_there(document: Document) -> Iterator[str]:
    """What has an answer is not said to be unknown."""
    text = document.text
    if re.search(r"first module with a non-finite output", text) and re.search(
        r"which (?:one|tensor) is not recorded", text
    ):
        yield "the module is named, and said not to be recorded"
    names = {
        "loss": "loss",
        "lr": "learning rate at the onset",
        "grad_norm": "gradient norm before",
    }
    for line in re.findall(r"(?m)^(?:Not recorded|Too few records): (.*)\.$", text):
        said = set(line.split(", "))
        for name in (one for one in document.signals if one in said):
            yield f"{name} is recorded, and said not to be"
        for signal, row in names.items():
            if row in document.rows and (signal in said or row in said):
                yield f"{row} stands in the table, and is said not to be recorded"


INSTRUCTIONS = (
    r"roll back to",
    r"start again from the initial weights|fix the cause and start again",
    r"continue from the last checkpoint",
    r"\bStop the run\b",
    r"^Wait|: Wait\b",
)


def two_instructions(document: Document) -> Iterator[str]:
    """One thing is to be done."""
    parts = "\n".join(
        (
            document.rows.get("to do", ""),
            document.section("Remediation", "Action", "Smallest remedy"),
        )
    )
    found = [one for one in INSTRUCTIONS if re.search(one, parts, re.I | re.M)]
    if len(found) > 1:
        yield f"instructions: {found}"


def no_number(document: Document) -> Iterator[str]:
    """Root cause and lesson speak of this run."""
    root, lesson = document.section("Root cause"), document.section("Lesson")
    if root and not re.search(r"\d", root) and not root.startswith("Not known"):
        yield f"no number in the root cause: {root[:80]}"
    if lesson and not re.search(r"\d|Not known", lesson):
        yield f"a stock lesson: {lesson[:80]}"


def other_worlds(document: Document) -> Iterator[str]:
    """A run without a reward is told nothing of policies."""
    if "reward" in document.signals:
        return
    for word in ("advantage", "reward", "response_length", "rollout"):
        if re.search(rf"\b{word}", document.text):
            yield f"speaks of {word}"


def first_detector_in_the_title(document: Document) -> Iterator[str]:
    """The title names what happened to the loss, where it moved."""
    before = document.number("loss before (average over 50 records)")
    peak = document.number("peak loss")
    title = document.text.split("\n", 1)[0]
    if re.search(rf"reward {NUMBER} -> {NUMBER}", title):
        return
    moved = before is not None and peak is not None and not peak <= 1.2 * abs(before)
    if moved and "silent" not in title and not re.search(rf"loss {NUMBER} -> {NUMBER}", title):
        yield f"the title does not name the loss: {title}"


def broken_text(document: Document) -> Iterator[str]:
    """No markup, no empty name, no broken number or plural."""
    text = document.text
    for pattern in (
        r"&(?:lt|gt|amp);",
        r"\bNone\b(?! needed| yet| of|\.|:)",
        r"\b1 (?:steps|records|bursts|separate bursts)\b",
        r"\binf times\b|\bnan times\b",
        r"\bnot recorded\b.*\bnot recorded\b",
        r"[a-z]\.\.(?!\.)",
    ):
        if found := re.search(pattern, text):
            yield f"reads {found[0]!r}"
    if re.search(r"(?m)^\| +\| [^| ]", text.split("## Evidence")[0].split("\n| --- |", 2)[-1]):
        yield "a row without a name"


RULES: tuple[Rule, ...] = (
    two_ends,
    lost_and_lower,
    over_a_limit_that_it_is_under,
    past_the_end,
    missing_and_there,
    two_instructions,
    no_number,
    other_worlds,
    first_detector_in_the_title,
    broken_text,
)


def contradictions_in(document: Document) -> list[str]:
    """Return what a reader would stumble over."""
    return [f"{rule.__name__}: {said}" for rule in RULES for said in rule(document)]


_NOT_KNOWN = ("Not known", "No evidence points to a cause")


def repeated_sentences(documents: Mapping[str, Document]) -> list[str]:
    """Return root causes and lessons that two incidents share, though they begin elsewhere."""
    found = []
    onsets = {name: one.number("onset, step") for name, one in documents.items()}
    said = {
        name: (one.section("Root cause"), one.section("Lesson")) for name, one in documents.items()
    }
    for (first, ours), (second, theirs) in itertools.combinations(said.items(), 2):
        pairs = zip(ours, theirs, strict=True)
        same = [
            a for a, b in pairs if a and a == b and not a.startswith(("Not known", "No evidence"))
        ]
        if same and onsets[first] != onsets[second]:
            found += [f"{first} and {second}: {one[:100]}" for one in same]
    return found
