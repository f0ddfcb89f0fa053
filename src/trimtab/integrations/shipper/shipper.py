"""Shipper: one thread per sink, until the run is over and everything was sent."""

import threading
from collections.abc import Sequence

from trimtab.core.config import ShipConfig
from trimtab.core.errors import TrimtabError
from trimtab.core.sink import Sink
from trimtab.integrations.shipper.liveness import Liveness, Owner, WriterProcess
from trimtab.integrations.shipper.log import ShipLog, connect_logger
from trimtab.integrations.shipper.registry import find_sink
from trimtab.integrations.shipper.shipment import Shipment
from trimtab.integrations.transport.secrets import SECRETS
from trimtab.journal import RunDirectory

HANG_SECONDS = 30.0
"""How long the end waits for a sink that hangs in a library, beyond the time to send the rest."""


class Shipper:
    """Sends a run to several sinks; each has its own thread, so none waits for another."""

    def __init__(
        self,
        run: RunDirectory,
        sinks: Sequence[Sink],
        config: ShipConfig,
        log: ShipLog,
        owner: Owner | None = None,
    ) -> None:
        """With an owner, stop `drain_seconds` after the run is over; else keep trying."""
        self._config = config
        self._owner = owner
        self._log = log
        self._stop = threading.Event()
        liveness = Liveness(owner or WriterProcess(run), config.stall_seconds)
        self.shipments = [
            Shipment(
                run,
                sink,
                config,
                liveness,
                log,
                give_up_seconds=None if owner is None else config.drain_seconds,
            )
            for sink in sinks
        ]

    def run(self) -> bool:
        """Send until the end; whether every sink has everything."""
        connect_logger(self._log)
        threads = [
            threading.Thread(
                target=shipment.work,
                args=(self._stop,),
                name=f"trimtab-{shipment.sink.name}",
                daemon=True,
            )
            for shipment in self.shipments
        ]
        for thread in threads:
            thread.start()
        for thread, shipment in zip(threads, self.shipments, strict=True):
            while thread.is_alive() and not self._stop.is_set():
                thread.join(0.5)
                if self._owner is not None and self._owner.is_gone:
                    thread.join(self._config.drain_seconds + HANG_SECONDS)
                    break
            if self._stop.is_set():
                thread.join(HANG_SECONDS)  # a batch that is being sent is completed
            if thread.is_alive():
                self._log.warning(f"{shipment.sink.name} does not answer and is left")
        return all(shipment.is_complete for shipment in self.shipments)

    def stop(self) -> None:
        """Stop soon; what was not sent is sent by the next shipper."""
        self._stop.set()


def make_sinks(names: Sequence[str], log: ShipLog) -> list[Sink]:
    """The sinks of these names; one that cannot be made is reported and left out."""
    sinks = []
    for name in dict.fromkeys(names):
        try:
            sinks.append(find_sink(name))
        except TrimtabError as error:
            log.warning(f"{name} is left out: {SECRETS.hide(str(error))}")
    return sinks
