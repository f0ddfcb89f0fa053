"""The experiments by name."""

from collections.abc import Callable, Mapping

from trimtab.probes.again import again
from trimtab.probes.batch_or_state import earlier, next_batch
from trimtab.probes.first_nonfinite import first_nonfinite
from trimtab.probes.half import half
from trimtab.probes.passes import Experiment, Question
from trimtab.probes.precision import fp32
from trimtab.probes.remedy import remedy
from trimtab.probes.state_checks import lower_lr, reference, restore_check

EXPERIMENTS: Mapping[str, Callable[[Question], Experiment]] = {
    "again": again,
    "first-nonfinite": first_nonfinite,
    "fp32": fp32,
    "half": half,
    "earlier": earlier,
    "next": next_batch,
    "restore-check": restore_check,
    "reference": reference,
    "lower-lr": lower_lr,
    "remedy": remedy,
}
"""Each takes a question, asks for passes and returns an answer."""
