"""What going back to a checkpoint will cost, known before the run."""

from dataclasses import dataclass

from trimtab.checks.number_text import hours

DETECTION_STEPS = 200
"""Steps until trouble is acted on, by default: the textbook waits 200 steps for a spike to
recover, and calls 200 rises in a row a divergence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackCost:
    """The worst case: the last checkpoint was about to be written when trouble began."""

    steps: int
    """Steps made for nothing: since the checkpoint, and until somebody acted."""
    detection: int
    """How many of them pass before somebody acts."""
    seconds: float | None
    dollars: float | None

    def __str__(self) -> str:
        parts = [f"{self.steps:,} steps"]
        if self.seconds is not None:
            parts.append(hours(self.seconds))
        if self.dollars is not None:
            parts.append(f"${self.dollars:,.0f}")
        return " = ".join(parts)


def compute_rollback_cost(
    *,
    checkpoint_steps: int,
    detection_steps: int | None = None,
    log_steps: int | None = None,
    step_seconds: float | None = None,
    price_per_hour: float | None = None,
) -> RollbackCost | None:
    """The cost of the worst case, or None if there is nothing to go back to."""
    if checkpoint_steps <= 0:
        return None
    # Trouble cannot be seen before it is logged.
    detection = (DETECTION_STEPS if detection_steps is None else detection_steps) + (log_steps or 0)
    steps = checkpoint_steps + detection
    seconds = None if step_seconds is None else steps * step_seconds
    dollars = None if seconds is None or price_per_hour is None else seconds / 3600 * price_per_hour
    return RollbackCost(steps=steps, detection=detection, seconds=seconds, dollars=dollars)
