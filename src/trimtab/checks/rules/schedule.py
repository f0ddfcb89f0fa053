"""Rules on the learning rate over time: warm-up, decay and jumps of the simulated curve."""

import numpy as np

from trimtab.checks.plan import Curve, Points, Shape
from trimtab.checks.rule import ADAM, Fault, Shown, advice, amount, brief, error, warning

RISE = 0.05
"""Share of the peak that a rate may rise in its decay: more than rounding, less than any plan."""

JUMP = 0.1
"""Share of the peak that a rate may gain in one step; F05 of the catalogue is a factor of 1.2."""

RESUME_RATIO = 1.2
"""F05 of the catalogue: a rate that differs by this factor from one step to the next."""

EARLY_END, LATE_END = 0.9, 1.25
"""Share of the run at which a decay may end: BLOOM ended at 0.909 on purpose, and Chinchilla saw a
clear loss from 1.25 on."""

DEAD_SHARE = 0.01
"""Share of the run that may pass at a rate of next to nothing."""


def _jump(curve: Curve) -> int | None:
    """Return the first point after the warm-up that is far above the one before it."""
    rates = curve.after_warmup
    if len(rates) < 2:
        return None
    gains = np.diff(rates)
    at = int(np.argmax(gains > JUMP * curve.peak))
    return curve.warmup + at + 1 if gains[at] > JUMP * curve.peak else None


@error(
    "TT020",
    "The learning rate rises again in its decay",
    source="F24 of the catalogue; stability guides: a cosine implemented upside down",
)
def rising_in_decay(
    curve: Curve,
    steps: int,
    lr: float | None = None,
    final_lr: float | None = None,
    decay_end: int | None = None,
    lr_points: Points | None = None,
) -> Fault | None:
    """What the low rate had settled is shaken loose again, and the run ends at a rate at which it
    cannot converge (a cosine of a whole period, or one turned upside down)."""
    if curve.still_rising or _jump(curve) is not None or curve.lr.min() < 0:
        return None
    if lr is not None and final_lr is not None and final_lr > lr:
        return None  # TT021 reports it better
    rates = curve.after_warmup
    rise = rates - np.minimum.accumulate(rates)
    if rise.max() <= RISE * curve.peak:
        return None
    top = int(np.argmax(rise))
    bottom = int(np.argmin(rates[: top + 1]))
    first, last = (int(curve.step[curve.warmup + place]) for place in (bottom, top))
    what = (
        f"from step {first:,} to {last:,} the rate rises from {brief(rates[bottom])} to "
        f"{brief(rates[top])}"
    )
    if lr_points is not None:
        return Fault(what, how=f"lower the points after step {first:,}")
    if decay_end is not None and decay_end < steps:  # the formula continues past its end
        return Fault(what, {"decay_end": steps})
    return Fault(what, {"cycles": 0.5})


@error(
    "TT021",
    "The final learning rate is above the peak",
    source="F24 of the catalogue; Megatron-LM refuses such a pair",
    shown=Shown.LAB,
)
def floor_above_peak(lr: float, final_lr: float) -> Fault | None:
    """The decay interpolates towards a floor that lies higher than its start, so the rate grows
    until the end of the run."""
    if not final_lr > lr > 0:
        return None
    return Fault(
        f"the decay leads from {brief(lr)} up to {brief(final_lr)}",
        {"final_lr": float(f"{lr / 10:.3g}")},
    )


@warning(
    "TT022",
    "The learning rate jumps up",
    source="F05 of the catalogue; post-mortem guides name restarts and misaligned warm-ups",
)
def rate_jumps(curve: Curve, lr_points: Points | None = None) -> Fault | None:
    """Weights that have settled at a low rate get steps many times larger from one moment to the
    next, while the second moment still remembers the small gradients."""
    at = _jump(curve)
    if at is None or curve.lr.min() < 0:
        return None
    step = int(curve.step[at])
    what = (
        f"at step {step:,} the rate goes from {brief(curve.lr[at - 1])} to "
        f"{brief(curve.lr[at])} in one step"
    )
    if lr_points is not None:
        return Fault(what, how=f"lower the points from step {step:,} on")
    return Fault(what, {"schedule": Shape.COSINE, "cycles": 0.5})


@warning(
    "TT027",
    "The decay ends long before the run",
    source="nanoGPT and Chinchilla: the decay should end with the run; BLOOM stopped 9 % early",
    only={"holds_after_decay": True},
)
def early_end(schedule: Shape, steps: int, decay_end: int) -> Fault | None:
    """The rest of the run is paid for at the lowest rate, where it learns least."""
    if schedule is Shape.CONSTANT or not 0 < decay_end < EARLY_END * steps:
        return None
    return Fault(
        f"the decay ends at step {decay_end:,}, the run at {steps:,}: "
        f"{steps - decay_end:,} steps at the floor",
        {"decay_end": steps},
    )


@warning(
    "TT028",
    "The run ends long before the decay",
    source="Chinchilla (Hoffmann et al. 2022): a decay over 25 % longer than the run costs loss",
)
def late_end(
    schedule: Shape, steps: int, decay_end: int, curve: Curve | None = None
) -> Fault | None:
    """The rate is still high at the last step, and what the low end of the decay would have gained
    is never collected."""
    if schedule in (Shape.CONSTANT, Shape.INVERSE_SQRT) or decay_end <= LATE_END * steps:
        return None
    what = f"the decay ends at step {decay_end:,}, the run at {steps:,}"
    if curve is not None:
        what += f", with the rate at {100 * float(curve.lr[-1]) / curve.peak:.0f} % of its peak"
    return Fault(what, {"decay_end": steps})


@error(
    "TT029",
    "The learning rate is zero for a part of the run",
    source="follows from the schedule",
    shown=Shown.LAB,
)
def dead_steps(curve: Curve, final_lr: float, steps: int) -> Fault | None:
    """At a rate of zero nothing is learned, and the hardware is paid all the same."""
    if curve.lr.min() < 0:
        return None
    dead = curve.lr <= 1e-6 * curve.peak
    if dead.mean() <= DEAD_SHARE:
        return None
    first = int(curve.step[int(np.argmax(dead))])
    return Fault(
        f"from step {first:,} on the rate is {brief(final_lr)}: "
        f"{100 * dead.mean():.0f} % of the run",
        {"decay_end": steps},
    )


@error(
    "TT030",
    "The learning rate becomes negative",
    source="measured: torchtitan 0.3.0 with total_steps below training.steps",
    shown=Shown.LAB,
)
def negative_rate(curve: Curve, steps: int) -> Fault | None:
    """The formula of the decay continues past its end, and a negative rate climbs the loss."""
    below = curve.lr < -1e-9 * curve.peak
    if not below.any():
        return None
    first = int(curve.step[int(np.argmax(below))])
    return Fault(
        f"from step {first:,} on the rate is below zero, at the end {brief(curve.lr[-1])}",
        {"decay_end": steps},
    )


@error(
    "TT031",
    "The schedule resumes at a different step than the run",
    source="F05 of the catalogue; verl issue 7953 (schedule saved, not restored)",
    only={"resumed": True},
)
def resume_offset(curve: Curve, resume_step: int, schedule_step: int) -> Fault | None:
    """The first update after the resume is made at a rate that the weights and moments of the
    checkpoint have never seen."""
    wanted, found = curve.at(resume_step), curve.at(schedule_step)
    low, high = sorted((wanted, found))
    if high <= RESUME_RATIO * max(low, 0.0):
        return None
    return Fault(
        f"the run goes on at step {resume_step:,} with {brief(wanted)}, its schedule at step "
        f"{schedule_step:,} with {brief(found)}",
        {"schedule_step": resume_step},
    )


@advice(
    "TT032",
    "The learning rate never comes down",
    source="Hu et al. 2024 (MiniCPM): a tenth of the run in decay is enough",
    only={"from_scratch": True},
)
def never_decays(schedule: Shape, steps: int) -> Fault | None:
    """The noise of the last steps stays in the weights; a decay takes it out."""
    if schedule is not Shape.CONSTANT:
        return None
    return Fault(f"the rate is constant over all {steps:,} steps", {"schedule": Shape.COSINE})


LONGEST_WARMUP = 1 / 3
"""Share of a run. Published runs take 0.02 to 20 % (torchtitan's recipes)."""

RISKY_RATE = 1e-4
"""No harm from a missing warm-up is reported below this; most fine-tuning is there."""

SHORT_WARMUP = 0.01
"""Share of a run below which a warm-up that is also shorter than Adam's memory is too short."""


@error("TT023", "The warm-up never ends", source="F24 of the catalogue")
def endless_warmup(curve: Curve, steps: int, lr_points: Points | None = None) -> Fault | None:
    """The run stops while the rate is still on its way up: it never trains at the rate that was
    chosen and never decays."""
    if not curve.still_rising:
        return None
    what = f"the rate is still rising at the last of {steps:,} steps"
    if lr_points is not None:
        return Fault(what, how="let the points come down before the end")
    return Fault(what, {"warmup_steps": max(min(2000, steps // 10), 1)})


@warning(
    "TT024",
    "The warm-up takes most of the run",
    source="published runs warm up for 0.02 to 20 % of their steps",
)
def long_warmup(curve: Curve, steps: int, warmup_steps: int) -> Fault | None:
    """Steps at a low rate cost as much as the others and teach less."""
    if curve.still_rising or warmup_steps <= LONGEST_WARMUP * steps:
        return None
    return Fault(
        f"{warmup_steps:,} of {steps:,} steps are warm-up ({100 * warmup_steps / steps:.0f} %)",
        {"warmup_steps": max(min(2000, steps // 10), 1)},
    )


@warning(
    "TT025",
    "There is no warm-up",
    source="Llama 2 and OPT warm up for 2,000 steps, OLMo for 5,000",
    only=ADAM,
)
def no_warmup(
    lr: float, warmup_steps: int, beta2: float | None = None, steps: int | None = None
) -> Fault | None:
    """Adam's second moment is known from a few gradients only, the largest ones of the whole run,
    and the full rate is applied to what it makes of them."""
    if warmup_steps > 0 or lr < RISKY_RATE:
        return None
    return Fault(
        f"the first step is made at {brief(lr)}", {"warmup_steps": _good_warmup(beta2, steps)}
    )


@warning(
    "TT026",
    "The warm-up is shorter than Adam's memory",
    source="Ma and Yarats 2021: 2 / (1 - beta2) steps",
    only=ADAM,
)
def short_warmup(lr: float, warmup_steps: int, beta2: float, steps: int) -> Fault | None:
    """The full rate comes before the second moment has seen as many gradients as it averages
    over."""
    if lr < RISKY_RATE or not 0 < beta2 < 1:
        return None
    enough = min(2 / (1 - beta2), SHORT_WARMUP * steps)
    if warmup_steps == 0 or warmup_steps >= enough:
        return None
    return Fault(
        f"{warmup_steps:,} steps of warm-up; beta2 {brief(beta2)} asks for "
        f"{amount(2 / (1 - beta2))}",
        {"warmup_steps": _good_warmup(beta2, steps)},
    )


def _good_warmup(beta2: float | None, steps: int | None) -> int:
    """Steps of warm-up to begin with: what published runs use, or a tenth of a shorter run."""
    wanted = 2000
    if beta2 is not None and 0 < beta2 < 1:
        wanted = max(wanted, round(2 / (1 - beta2)))
    return wanted if steps is None else max(min(wanted, steps // 10), 1)
