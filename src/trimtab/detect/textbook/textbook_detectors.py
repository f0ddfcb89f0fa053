"""The detectors of the textbook's rules."""

from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.core.findings import Severity
from trimtab.detect.state.nonfinite import NonFinite
from trimtab.detect.textbook.rise import TextbookRise
from trimtab.detect.textbook.scale import TextbookScale
from trimtab.detect.textbook.spike import TextbookSpike


def textbook_detectors(config: Config) -> list[Detector]:
    """New detectors for one run, in the order in which they report."""
    return [
        NonFinite(under_scaler=Severity.ALARM),  # the textbook knows no harmless overflow
        TextbookSpike(config.textbook),
        TextbookRise(config.textbook),
        TextbookScale(config.textbook),
    ]
