"""Outlook: a word on what will become of an incident while it is still going on.

At 8 and at 32 records after the alarm, the height of the loss that is left says most: spikes of
public runs that then stood more than 12 scales above their old level took over 100 steps to come
back, the others did not. The certainty is how many of those labelled ones went that way.
"""

import math
from collections.abc import Sequence

from trimtab.core.incidents import IncidentClass, Outlook
from trimtab.detect.expectation import median

OUTLOOK_RECORDS = (8, 32)
"""Records after the alarm at which an outlook is given."""

HEIGHT_RECORDS, HIGH_SCALES = 4, 12.0
"""The height left is the median of the last 4 losses, above the old level, in scales."""

_COUNTS = {
    (8, IncidentClass.LINGERING): (4, 4),
    (8, IncidentClass.RECOVERABLE): (7, 8),
    (32, IncidentClass.LINGERING): (5, 5),
    (32, IncidentClass.RECOVERABLE): (7, 7),
    (8, IncidentClass.DIVERGENT): (3, 3),
    (32, IncidentClass.DIVERGENT): (2, 2),
}
"""How many of the labelled tuning incidents that looked so ended so. They are few: the certainty
counts one more of each kind, so that 5 of 5 are not taken for certain."""


def foresee(
    losses: Sequence[float], level: float, scale: float, last: float | None, records: int
) -> Outlook | None:
    """What will probably become of an incident; None if too few losses are finite to say."""
    if last is not None and not math.isfinite(last):
        return _outlook(IncidentClass.DIVERGENT, records)
    if len(losses) < HEIGHT_RECORDS:
        return None
    height = (median(losses[-HEIGHT_RECORDS:]) - level) / scale
    is_high = height > HIGH_SCALES
    return _outlook(IncidentClass.LINGERING if is_high else IncidentClass.RECOVERABLE, records)


def _outlook(incident_class: IncidentClass, records: int) -> Outlook:
    right, seen = _COUNTS[records, incident_class]
    return Outlook(
        incident_class=incident_class, certainty=(right + 1) / (seen + 2), records=records
    )
