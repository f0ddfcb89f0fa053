"""What is sent to trackers and alerts, and when a run counts as stalled."""

from dataclasses import dataclass

from trimtab.core.config.section import Section, require


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig(Section):
    """Sending a run to trackers and alerts, from a process of its own (docs/integrations)."""

    to: tuple[str, ...] = ()
    """The sinks that the first rank starts a shipper for, such as "mlflow" and "alerts". Addresses
    and credentials come from the environment, never from here."""

    every: int = 10
    """Ticks from one value of a signal to the next. Loss, gradient norm, learning rate,
    throughput, evaluations, discards and non-finite values are always sent. Source: the slow
    telemetry is measured every 10 steps."""

    stall_seconds: float = 600.0
    """Seconds without a record, and for ten steps, before a run is stalled. Source: evaluations and
    checkpoints of large runs take minutes; 600 is what the Prometheus rule of trimtab uses too."""

    drain_seconds: float = 120.0
    """How long a shipper that the run started tries to send the rest after the run is over. What
    remains is sent by `trimtab ship RUN`. Source: batch systems give a job 30 s to a few minutes
    to end."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "every must be at least 1")
        require(self.stall_seconds > 0, "stall_seconds must be positive")
        require(self.drain_seconds >= 0, "drain_seconds must not be negative")
