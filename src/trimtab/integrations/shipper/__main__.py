"""The process that the first rank of a run starts: `python -m trimtab.integrations.shipper`.

standard input    ends when the guard is closed ("closed" comes first) or its process is gone
standard output   lines for the training log
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from trimtab.core.config import ShipConfig
from trimtab.core.errors import TrimtabError
from trimtab.integrations.shipper.liveness import Owner
from trimtab.integrations.shipper.log import ShipLog
from trimtab.integrations.shipper.shipper import Shipper, find_sink
from trimtab.integrations.transport import SECRETS
from trimtab.journal import RunDirectory


def main() -> int:
    """Ship until the run is over; return 0 if every sink has everything."""
    parser = argparse.ArgumentParser(prog="trimtab.integrations.shipper")
    parser.add_argument("run", type=Path)
    parser.add_argument("--config", default="{}", help="the settings of `ship`, as JSON")
    arguments = parser.parse_args()
    config = ShipConfig.from_dict(json.loads(arguments.config), "ship")
    owner = Owner(sys.stdin.fileno())
    run = RunDirectory(arguments.run)
    log = ShipLog(run, _divert_standard_output())
    # A Ctrl-C in the terminal ends the run; the shipper then sends the rest by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sinks = []
    for name in dict.fromkeys(config.to):
        try:
            sinks.append(find_sink(name))
        except TrimtabError as error:  # the others are sent to all the same
            log.warning(f"{name} is left out: {SECRETS.hide(str(error))}")
    shipper = Shipper(run, sinks, config, log, owner)
    signal.signal(signal.SIGTERM, lambda *_: shipper.stop())
    log.info(f"sending to {', '.join(sink.name for sink in sinks) or 'nothing'}")
    is_complete = shipper.run() and len(sinks) == len(set(config.to))
    return 0 if is_complete else 1


def _divert_standard_output() -> int:
    """Return the pipe to the training log; what libraries print is discarded from here on."""
    pipe = os.dup(sys.stdout.fileno())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return pipe


if __name__ == "__main__":
    code = main()
    # A sink may hang in a library; its threads and exit hooks must not hold this process.
    os._exit(code)
