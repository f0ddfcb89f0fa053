"""The detectors of the textbook's rules."""

from trimtab.core.detector import Detector
from trimtab.core.findings import Severity
from trimtab.detect.state.nonfinite import NonFinite
from trimtab.detect.textbook.rise import TextbookRise
from trimtab.detect.textbook.scale import TextbookScale
from trimtab.detect.textbook.spike import TextbookSpike
from trimtab.detect.textbook.thresholds import TextbookThresholds


def textbook_detectors(thresholds: TextbookThresholds) -> list[Detector]:
    """New detectors for one run, in the order in which they report."""
    return [
        NonFinite(under_scaler=Severity.ALARM),  # the textbook knows no harmless overflow
        TextbookSpike(thresholds),
        TextbookRise(thresholds),
        TextbookScale(thresholds),
    ]
