"""Time and peak memory of one process."""

import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MAX_MB = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one command took."""

    what: str
    seconds: float
    peak_mb: float
    seconds_bar: float | None = None

    def row(self) -> list[str]:
        """The line of the table."""
        is_met = self.peak_mb <= MAX_MB and (
            self.seconds_bar is None or self.seconds <= self.seconds_bar
        )
        bar = "" if self.seconds_bar is None else f"{self.seconds_bar:g}"
        return [
            self.what,
            f"{self.seconds:.1f}",
            bar,
            f"**{self.peak_mb:.0f}**",
            f"{MAX_MB}",
            "yes" if is_met else "NO",
        ]


def run(
    what: str,
    arguments: Sequence[str],
    *,
    stop_after: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """Run a command to its end, or interrupt it after some seconds."""
    begin = time.monotonic()
    process = start(arguments, stdout=subprocess.DEVNULL, environment=environment)
    while stop_after is not None and time.monotonic() - begin < stop_after:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.2)
    else:
        if stop_after is not None:
            process.send_signal(signal.SIGINT)
    code, used = wait(process)
    if code not in (0, 1):
        raise RuntimeError(f"{what} ended with {code}")
    return Cost(what=what, seconds=time.monotonic() - begin, peak_mb=used.ru_maxrss / 1024)


def run_and_read(arguments: Sequence[str]) -> tuple[str, float]:
    """What a command prints, and its peak memory in MB."""
    with tempfile.TemporaryFile("w+") as out:
        code, used = wait(start(arguments, stdout=out))
        out.seek(0)
        text = out.read()
    if code:
        raise RuntimeError(f"{arguments[0]} ended with {code}: {text}")
    return text, used.ru_maxrss / 1024


def start(
    arguments: Sequence[str],
    *,
    stdout: int | IO[str],
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a process whose end `wait` waits for."""
    return subprocess.Popen(
        arguments,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is subprocess.PIPE else None,
        env={**os.environ, **(environment or {})},
    )


def wait(process: "subprocess.Popen[bytes]") -> tuple[int, resource.struct_rusage]:
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used


def read_address(process: "subprocess.Popen[bytes]") -> str:
    """The address that a server prints."""
    stream = process.stdout
    for line in iter(stream.readline, b"") if stream is not None else ():
        found = re.search(rb"http://[\w.:\[\]]+", line)
        if found:
            return found[0].decode()
    raise RuntimeError("the server printed no address")


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
