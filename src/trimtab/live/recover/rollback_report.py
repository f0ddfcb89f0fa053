"""A rollback in the log, in the journal and in quarantine.jsonl; on the first rank."""

from pathlib import Path

from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.order import Order, as_ranges
from trimtab.live.recover.quarantine import add_to_quarantine
from trimtab.live.shield import Shield, log


def report_rollback(
    order: Order,
    came_from: int,
    step: int,
    recorder: RunRecorder | None,
    shield: Shield,
    quarantine_file: Path,
) -> None:
    """The run has gone back from one step to an earlier one."""
    lost = came_from - step
    log.warning(
        "trimtab: rolled back from step %d to step %d (%d steps are done again)%s%s%s%s",
        came_from,
        step,
        lost,
        f"; data positions skipped: {len(order.skip)}" if order.skip else "",
        f"; source left out: {order.quarantine}" if order.quarantine else "",
        f"; held: {', '.join(order.hold)}" if order.hold else "",
        f"; {order.reason}" if order.reason else "",
    )
    if recorder is None:
        return
    with shield.guarding("rollback"):
        facts = {
            "from": came_from,
            "to": step,
            "skip": as_ranges(order.skip),
            "hold": list(order.hold),
            **({} if order.quarantine is None else {"source": order.quarantine}),
            **({} if order.lr_factor is None else {"lr_factor": order.lr_factor}),
            "reason": order.reason,
            "steps_lost": lost,
        }
        recorder.rolled_back(step, facts)
    with shield.guarding("quarantine"):
        add_to_quarantine(
            quarantine_file, order.skip, order.quarantine, step=step, reason=order.reason
        )
