"""Classes of incidents as Markdown: how many are right, what is taken for what, how sure it was."""

from collections.abc import Sequence

from benchmarks.detect.classes import LOOKS, Classed, confusion, onset_errors
from benchmarks.detect.intervals import share_of
from benchmarks.results import table
from trimtab.core.incidents import IncidentClass

BARS: dict[int | None, str] = {8: "told", 32: "80 %", None: "90 %"}


def class_section(lab: Sequence[Classed], real: Sequence[Classed], splits: Sequence[str]) -> str:
    """All tables of classes."""
    parts = [
        "The true class of a lab fault is that of the run beside its clean twin "
        "(`benchmarks/true_class.py`), of a public incident its label. Scored is the "
        "first incident from the onset on; what was not found counts in recall, not here. A fault "
        "that was there from the first step on has no before: beside its twin the loss is too "
        "high, by itself it looks as any other, and the incident is called silent.",
        _right_table(lab, real, splits),
    ]
    for split in splits:
        items = [item for item in lab if item.split == split]
        if items:
            parts.append(f"What was called what, lab, {split}:\n\n{_confusion_table(items)}")
            parts.append(f"Wrong, lab, {split}:\n\n{_wrong_table(items)}")
    parts.append(
        "How sure it was: what was said at each look, with the mean of the certainties, and how "
        "many were right.\n\n" + _certainty_table([*lab, *real], splits)
    )
    return "\n\n".join(parts)


def _right_table(lab: Sequence[Classed], real: Sequence[Classed], splits: Sequence[str]) -> str:
    rows = []
    groups = (
        ("lab", lab),
        ("lab, with a before", [item for item in lab if not item.is_from_start]),
        ("lab, wrong from the first step", [item for item in lab if item.is_from_start]),
        ("public runs", real),
    )
    for name, group in groups:
        for split in splits:
            items = [item for item in group if item.split == split]
            if items:
                median, worst = onset_errors(items)
                rows.append(
                    (
                        f"{name}, {split}",
                        *(_share(items, look) for look in (*LOOKS, None)),
                        f"{median:g} / {worst:,}",
                    )
                )
    return table(
        (
            "incidents",
            *(f"right after {look} records (bar {BARS[look]})" for look in LOOKS),
            f"right in the end (bar {BARS[None]})",
            "onset wrong by, steps: median / worst",
        ),
        rows,
    )


def _share(items: Sequence[Classed], look: int | None) -> str:
    return share_of(sum(item.is_right(look) for item in items), len(items))


def _confusion_table(items: Sequence[Classed]) -> str:
    counts = confusion(items)
    called = [named for named in IncidentClass if any(item.final is named for item in items)]
    rows = [
        (truth, *(counts.get((truth, final), "") for final in called))
        for truth in IncidentClass
        if any(item.truth is truth for item in items)
    ]
    return table(("truly", *called), rows)


def _wrong_table(items: Sequence[Classed]) -> str:
    rows = [
        (item.name, item.truth, item.final, f"{item.onset_error:+,}")
        for item in items
        if not item.is_right()
    ]
    header = ("run", "truly", "called", "steps from the true onset to the one dated")
    return table(header, rows) if rows else "None."


def _certainty_table(items: Sequence[Classed], splits: Sequence[str]) -> str:
    rows = []
    for look in LOOKS:
        for named in IncidentClass:
            said = [item for item in items if item.said[look][0] is named]
            if said and named is not IncidentClass.OPEN:
                told = sum(item.said[look][1] for item in said) / len(said)
                shares = [_share([i for i in said if i.split == split], look) for split in splits]
                rows.append((look, named, f"{100 * told:.0f} %", *shares))
    return table(("records", "said", "certainty told", *(f"right, {s}" for s in splits)), rows)
