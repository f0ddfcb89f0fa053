"""Damaged logs by the hundred thousand, for all readers: `scripts/bench fuzz_readers [INPUTS]`.

Nothing but our own errors may come out, no input may take long, and memory may not grow. With
atheris installed, coverage chooses the damage; without it, a seeded generator does. The seeds are
the fixtures of all readers and the logs that the tests write.
"""

import importlib.util
import os
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.readers.text.writers import SAMPLES

from benchmarks.results import publish, table
from trimtab.core.errors import TrimtabError
from trimtab.readers import read_log
from trimtab.readers.registry import FORMATS

FIXTURES = Path(__file__).parents[1] / "tests" / "readers"
LARGEST_SEED = 1 << 16
INPUTS = 50_000
LONGEST = 10.0
"""Seconds of CPU time after which an input counts as a hang; the usual one takes milliseconds."""
MORE_MEMORY = 1 << 30
"""Bytes that the whole process may grow by."""

HEADER = ("what", "measured", "bar")
_WORDS = (
    b'\n \r\n \0 \x1b[31m [rank1]: nan -inf 1e308 1e999 | { } [ " , : = # step loss PAR1 '
    b"4294967295 \xff\xfe \x80 \xff\xff\xff\xff \x7f\xff\xff\xff \x00\x00\x00\x80"
)
TOKENS = [*_WORDS.split(b" "), b" " * 300, b"9" * 400, b"1.1,1.1," * 50, b"a: 1.1.1 " * 40]


class Hang(BaseException):
    """An input took too long; not an Exception, so that no reader can swallow it."""


@dataclass(slots=True)
class Tally:
    """What came out."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """All inputs so far."""
        return self.read + self.refused.total() + len(self.failures)


def seeds() -> list[bytes]:
    """Small whole logs of every kind."""
    files = [path for path in FIXTURES.rglob("fixtures/**/*") if path.is_file()]
    found = [path.read_bytes() for path in files if path.stat().st_size <= LARGEST_SEED]
    texts = ["".join(sample.print()[0][:12]) for sample in SAMPLES]
    plain = [
        "step,loss,lr\n1,2.5,nan\n2,inf,0.1\n",
        '{"step": 1, "loss": 2.5}\n{"a": {"b": NaN}}\n',
    ]
    return [*found, *(text.encode() for text in (*texts, *plain))]


def damage(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The data with a few things wrong in it."""
    damaged = bytearray(data[: rng.choice((512, 4096, LARGEST_SEED))])
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = rng.randrange(len(damaged) + 1)
        length = rng.choice((0, 1, 2, 8, 64))
        match rng.randrange(6):
            case 0:
                damaged[place : place + length] = rng.choice(TOKENS)
            case 1:
                damaged[place : place + length] = rng.randbytes(rng.choice((1, 4, 16)))
            case 2:
                del damaged[place : place + 8 * length]
            case 3:
                damaged[place:place] = damaged[place : place + 8 * length] * rng.choice((1, 2, 16))
            case 4:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                damaged[place:place] = other[start : start + 512]
            case _ if place < len(damaged):
                damaged[place] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def try_one(data: bytes, format: str | None, path: Path, tally: Tally) -> None:
    """Read one input as this format, or as whatever it is taken for."""
    path.write_bytes(data)
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        read_log(path, format=format)
    except TrimtabError as error:
        tally.refused[type(error).__name__] += 1
    except (Exception, Hang) as error:
        tally.failures.append(f"{type(error).__name__} ({error}) as {format}: {data[:200]!r}")
    else:
        tally.read += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    tally.slowest = max(tally.slowest, time.process_time() - begin)


def mutate(number: int, path: Path, tally: Tally) -> None:
    """Inputs by a seeded generator."""
    rng = random.Random(0)
    known = seeds()
    formats = [*[None] * len(FORMATS), *FORMATS]
    for _ in range(number):
        data = damage(rng.choice(known), known, rng)
        try_one(data, rng.choice(formats), path, tally)


def explore(number: int, path: Path, tally: Tally) -> None:
    """Inputs by atheris, guided by what they reach in the code; it never comes back."""
    atheris: Any = importlib.import_module("atheris")
    formats = [None, *FORMATS]

    def one(data: bytes) -> None:
        if data:
            try_one(data[1:], formats[data[0] % len(formats)], path, tally)
        if tally.inputs >= number:
            tell(tally, "atheris")
            os._exit(bool(tally.failures))

    corpus = path.parent / "corpus"
    corpus.mkdir()
    for count, seed in enumerate(seeds()):
        (corpus / str(count)).write_bytes(bytes([0]) + seed)
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], "-max_len=65536", "-rss_limit_mb=0", str(corpus)], one)
    atheris.Fuzz()


def tell(tally: Tally, guide: str) -> None:
    """Publish what came out, and print every failure."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime
    refused = ", ".join(f"{count:,} {name}" for name, count in sorted(tally.refused.items()))
    rows = [
        ("damaged logs", f"{tally.inputs:,}", "1,000,000"),
        ("read after all", f"{tally.read:,}", "none"),
        ("refused with an error of ours", refused or "0", "none"),
        ("other errors, hangs", f"{len(tally.failures):,}", "0"),
        ("slowest, CPU time", f"{tally.slowest:.2f} s", f"{LONGEST:.0f} s"),
        ("peak memory of the process", f"{usage.ru_maxrss / 1024:.0f} MB", "none"),
    ]
    body = (
        f"{len(FORMATS)} readers, {len(seeds())} seeds, damage by {guide}, each input read as what "
        f"it looks like or as some format; {seconds:.0f} s of CPU time.\n\n"
    )
    publish("Readers: damaged logs", "scripts/bench fuzz_readers", body + table(HEADER, rows))
    for failure in tally.failures[:20]:
        print(failure)


def main(number: int) -> None:
    """Read so many damaged logs."""
    signal.signal(signal.SIGPROF, _raise_hang)
    warnings.simplefilter("error")  # nobody wants to see what numpy thinks of a log
    tally = Tally()
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        path = Path(folder) / "log"
        if importlib.util.find_spec("atheris"):
            explore(number, path, tally)
        # atheris needs room for its maps, so only here is there a limit.
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MORE_MEMORY, most))
        mutate(number, path, tally)
    tell(tally, "a seeded generator")
    sys.exit(bool(tally.failures))


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"over {LONGEST:.0f} s of CPU time")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS)
