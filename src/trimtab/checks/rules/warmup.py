"""Rules on the warm-up: missing, too short, too long, endless."""

from trimtab.checks.curve import Curve, Points
from trimtab.checks.rule import ADAM, Change, Fault, Level, rule
from trimtab.checks.wording import amount, number

LONGEST_WARMUP = 1 / 3
"""Share of a run. Published runs take 0.02 to 20 % (torchtitan's recipes)."""

RISKY_RATE = 1e-4
"""No harm from a missing warm-up is reported below this; most fine-tuning is there."""

SHORT_WARMUP = 0.01
"""Share of a run below which a warm-up that is also shorter than Adam's memory is too short."""


@rule(
    "TT023",
    Level.ERROR,
    "The warm-up never ends",
    mechanism="The run stops while the rate is still on its way up: it never trains at the rate "
    "that was chosen and never decays.",
    source="F24 of the catalogue",
)
def endless_warmup(curve: Curve, steps: int, lr_points: Points | None = None) -> Fault | None:
    """Look for a warm-up as long as the run."""
    if not curve.still_rising:
        return None
    what = f"the rate is still rising at the last of {steps:,} steps"
    if lr_points is not None:
        return Fault(what, how="let the points come down before the end")
    return Fault(what, (Change("warmup_steps", max(min(2000, steps // 10), 1)),))


@rule(
    "TT024",
    Level.WARNING,
    "The warm-up takes most of the run",
    mechanism="Steps at a low rate cost as much as the others and teach less.",
    source="published runs warm up for 0.02 to 20 % of their steps",
)
def long_warmup(curve: Curve, steps: int, warmup_steps: int) -> Fault | None:
    """Look for a warm-up of more than a third of the run."""
    if curve.still_rising or warmup_steps <= LONGEST_WARMUP * steps:
        return None
    return Fault(
        f"{warmup_steps:,} of {steps:,} steps are warm-up ({100 * warmup_steps / steps:.0f} %)",
        (Change("warmup_steps", max(min(2000, steps // 10), 1)),),
    )


@rule(
    "TT025",
    Level.WARNING,
    "There is no warm-up",
    mechanism="Adam's second moment is known from a few gradients only, the largest ones of the "
    "whole run, and the full rate is applied to what it makes of them.",
    source="Llama 2 and OPT warm up for 2,000 steps, OLMo for 5,000",
    only=ADAM,
)
def no_warmup(
    lr: float, warmup_steps: int, beta2: float | None = None, steps: int | None = None
) -> Fault | None:
    """Look for a run that begins at its full rate."""
    if warmup_steps > 0 or lr < RISKY_RATE:
        return None
    return Fault(
        f"the first step is made at {number(lr)}",
        (Change("warmup_steps", _good_warmup(beta2, steps)),),
    )


@rule(
    "TT026",
    Level.WARNING,
    "The warm-up is shorter than Adam's memory",
    mechanism="The full rate comes before the second moment has seen as many gradients as it "
    "averages over.",
    source="Ma and Yarats 2021: 2 / (1 - beta2) steps",
    only=ADAM,
)
def short_warmup(lr: float, warmup_steps: int, beta2: float, steps: int) -> Fault | None:
    """Look for a warm-up that is both short against the moment and against the run."""
    if lr < RISKY_RATE or not 0 < beta2 < 1:
        return None
    enough = min(2 / (1 - beta2), SHORT_WARMUP * steps)
    if warmup_steps == 0 or warmup_steps >= enough:
        return None
    return Fault(
        f"{warmup_steps:,} steps of warm-up; beta2 {number(beta2)} asks for "
        f"{amount(2 / (1 - beta2))}",
        (Change("warmup_steps", _good_warmup(beta2, steps)),),
    )


def _good_warmup(beta2: float | None, steps: int | None) -> int:
    """Steps of warm-up to begin with: what published runs use, or a tenth of a shorter run."""
    wanted = 2000
    if beta2 is not None and 0 < beta2 < 1:
        wanted = max(wanted, round(2 / (1 - beta2)))
    return wanted if steps is None else max(min(wanted, steps // 10), 1)
