"""Snapshots of large models on paper, from the measured cost of a snapshot of a small one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.results import RESULTS
from trimtab.state.snapshots import NUM_SLOTS

MODELS = {"70B": 70e9, "400B": 400e9}
RANKS = (512, 4_096, 16_384)
RANKS_PER_NODE = 8
LINK_BYTES = 25e9
"""Assumed: bytes per second from a GPU into pinned memory of the host, PCIe 4.0 x16 (32 GB/s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The section "Cost of snapshots" of RESULTS.md."""

    parameters: float
    num_bytes: int
    take_seconds: float

    @property
    def bytes_per_parameter(self) -> float:
        """Weights and both moments, in fp32."""
        return self.num_bytes / self.parameters

    @property
    def bytes_per_second(self) -> float:
        """Of a copy by one core."""
        return self.num_bytes / self.take_seconds


def read_measured() -> Measured:
    """Return what was measured of a small model."""
    text = RESULTS.read_text(encoding="utf-8").split("\n## Cost of snapshots\n")[1]
    text = text.split("\n## ")[0]
    parameters = re.search(r"([\d.]+)M parameters", text)
    num_bytes = re.search(r"the tensors have ([\d,]+) bytes", text)
    take = re.search(r"\| snapshot, take \| (\d+) ms", text)
    if not (parameters and num_bytes and take):
        raise ValueError("RESULTS.md has no cost of snapshots")
    return Measured(
        parameters=1e6 * float(parameters[1]),
        num_bytes=int(num_bytes[1].replace(",", "")),
        take_seconds=int(take[1]) / 1000,
    )


def rows(measured: Measured) -> Iterator[list[str]]:
    """One line for each model and number of ranks, fully sharded."""
    for name, parameters in MODELS.items():
        state = parameters * measured.bytes_per_parameter
        for ranks in RANKS:
            one = state / ranks
            yield [
                name,
                f"{ranks:,}",
                f"{state / 1e12:.2f} TB",
                f"{one / 1e9:.2f} GB",
                f"{NUM_SLOTS * one * RANKS_PER_NODE / 1e9:,.0f} GB",
                f"{1000 * one / LINK_BYTES:,.0f} ms",
                f"{1000 * one / measured.bytes_per_second:,.0f} ms",
            ]
