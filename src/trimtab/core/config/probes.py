"""ProbesConfig: what experiments on an incident may cost."""

from dataclasses import dataclass

from trimtab.core.config.section import Section, require


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbesConfig(Section):
    """Experiments that a recovering run makes on an incident by itself (docs/probes.md)."""

    enabled: bool = False
    """Whether the run makes them by itself; `guard.probe` works either way. Off by default,
    because what recovery costs and saves was measured without them."""

    max_steps: int = 120
    """Steps that are done again for one experiment, at most. Source: two replays from a snapshot
    that is 20 to 40 steps old, and a bisection over 64 sequences."""

    max_seconds: float = 120.0
    """Seconds after which an experiment is given up, at the end of a step."""

    max_steps_per_incident: int = 240
    """Steps that are done again for all experiments on one incident. Source: half of what a
    restart by hand costs."""

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "max_steps must be at least 1")
        require(self.max_seconds > 0, "max_seconds must be positive")
        require(self.max_steps_per_incident >= 0, "max_steps_per_incident must not be negative")
