"""LadderConfig: the budgets and waiting times of a run that recovers by itself."""

from dataclasses import dataclass

from trimtab.core.config.section import Section, require


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderConfig(Section):
    """What a recovering run may do, and how long it waits before it does."""

    enabled: bool = True
    """Whether the run decides by itself; if not, it goes back only by `guard.rollback`."""

    approve: str = "auto"
    """"auto" acts at once. "ask" writes the proposed action into the run directory and waits for
    `trimtab approve` or `trimtab decline`, while training continues."""

    approve_seconds: float = 900.0
    """How long a proposal waits for an answer; without one the run continues and does not act."""

    max_rollbacks: int = 4
    """Rollbacks within `window_steps`. Source: OPT-175B restarted about 90 times in 140,000 steps;
    more than a few in 1,000 steps means that rolling back does not help."""

    max_skipped_batches: int = 500
    """Batches skipped within `window_steps`. Source: PaLM skipped 200 to 500 at each spike."""

    window_steps: int = 1000
    """Steps over which rollbacks and skipped batches are counted."""

    max_lr_reductions: int = 2
    """How often the learning rate is lowered in one run. Source: textbook, "LR down 2 to 3x when
    spikes recur"; in the lab it costs more than it gains."""

    max_relaunches: int = 0
    """How often a supervisor of yours starts the run again after exit code 75. With 0 only
    `trimtab run` does; without that the run is not ended where only a relaunch would help."""

    probe_after_steps: int = 8
    """Steps after an alarm of the loss before the weights are probed. Source: gross harm is plain
    after 8 steps in the lab, and hard batches are over."""

    second_probe_after_steps: int = 32
    """Steps after the alarm at which they are probed again. Source: moderate harm after 8 steps
    correlates with the final one by 0.30, after 24 to 40 steps by 0.72."""

    check_steps: int = 16
    """Steps past the onset at which a remedy is checked, at least. Source: 34 of 34 checks at 16
    steps were right, except for a fault that takes 30 steps to show."""

    canary_share: float = 0.0046
    """Share of the training time that probes of a healthy run may take; 3.5 times that in the first
    1,000 steps. Chosen: with less, batches of the last reading are older than `oldest_steps`."""

    def __post_init__(self) -> None:
        for name in ("max_rollbacks", "max_skipped_batches", "max_lr_reductions", "max_relaunches"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.approve in ("auto", "ask"), f"approve is {self.approve!r}; use auto or ask")
        require(self.approve_seconds > 0, "approve_seconds must be positive")
        for name in ("window_steps", "probe_after_steps", "check_steps"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        require(
            self.second_probe_after_steps > self.probe_after_steps,
            "second_probe_after_steps must be over probe_after_steps",
        )
        require(0 <= self.canary_share <= 0.1, "canary_share must be in 0..0.1")
