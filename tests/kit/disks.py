"""Disks that fail: a file system that hangs, and one that is full. They need root and mount(8)."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trimtab.journal import JournalWriter


class CannotMount(Exception):
    """This machine does not let us make such a disk."""


@dataclass(slots=True)
class Costs:
    """What `append` cost its caller, call by call."""

    wall: list[int] = field(default_factory=list)
    """Nanoseconds by the clock: everything, also what other processes on the machine took."""
    cpu: list[int] = field(default_factory=list)
    """Nanoseconds that the calling thread worked."""

    def append(self, writer: JournalWriter, step: int, signals: dict[str, float]) -> None:
        """Append a record and note what it cost."""
        self.measure(lambda: writer.append(step, signals))

    def measure(self, work: Callable[[], object]) -> None:
        """Do something and note what it cost."""
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        work()
        self.wall.append(time.perf_counter_ns() - wall)
        self.cpu.append(time.thread_time_ns() - cpu)

    def summary(self) -> dict[str, float]:
        """Milliseconds."""
        wall, cpu = np.array(self.wall) / 1e6, np.array(self.cpu) / 1e6
        return {
            "mean": float(wall.mean()),
            "p99": float(np.quantile(wall, 0.99)),
            "p99.9": float(np.quantile(wall, 0.999)),
            "max": float(wall.max()),
            "max cpu": float(cpu.max()),
        }


@contextmanager
def disk_that_can_hang(folder: Path) -> Iterator[Path]:
    image, place = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    _run("mkfs.ext4", "-q", "-F", str(image))
    with _mounted(place, "-o", "loop", str(image)):
        yield place


@contextmanager
def small_disk(folder: Path, size: str = "1m") -> Iterator[Path]:
    """A file system in memory that is soon full."""
    place = folder / "disk"
    with _mounted(place, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield place


@contextmanager
def hanging(place: Path, longest: float) -> Iterator[None]:
    """Every write to the file system waits until the end of the block, or `longest` seconds."""
    # Should this process be killed meanwhile, nobody must be left with a frozen disk.
    script = f"sleep {longest}; fsfreeze -u {place}"
    watchdog = subprocess.Popen(
        ["sh", "-c", script], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _run("fsfreeze", "-f", str(place))
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], check=False, capture_output=True)
        with suppress(ProcessLookupError):
            os.killpg(watchdog.pid, 9)
        watchdog.wait()


@contextmanager
def _mounted(place: Path, *arguments: str) -> Iterator[None]:
    if os.geteuid() != 0:
        raise CannotMount("mounting needs root")
    place.mkdir()
    _run("mount", *arguments, str(place))
    try:
        yield
    finally:
        for command in (["umount"], ["umount", "-l"]):
            if subprocess.run([*command, str(place)], check=False, capture_output=True).returncode:
                continue
            break


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        raise CannotMount(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise CannotMount(f"{' '.join(command)}: {error.stderr.strip()}") from error
