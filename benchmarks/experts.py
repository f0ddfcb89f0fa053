"""Experts that collapse or die, planted in a tiny mixture: found, and silence without them."""

import logging
import sys
import tempfile
from pathlib import Path

import torch
from tests.kit.mixtures import NUM_EXPERTS, VOCABULARY, Model
from torch.nn import functional as F

import trimtab
from benchmarks.results import publish, table
from trimtab.core.block import Block
from trimtab.core.findings import Symptom
from trimtab.detect.state.experts import Experts
from trimtab.journal import RunDirectory, read_journal

STEPS, FAULT = 240, 120


def train(fault: str | None, seed: int) -> Block:
    """Train with a fault in one layer from FAULT on."""
    torch.manual_seed(seed)
    model = Model()
    bias = model.get_parameter(f"layers.{seed % 3}.moe.gate.bias")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    successor = torch.randperm(VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        with trimtab.watch(model, optimizer, run_dir=folder) as guard:
            for step in range(STEPS):
                tokens = torch.randint(0, VOCABULARY, (8, 16))
                loss = F.cross_entropy(model(tokens).transpose(1, 2), successor[tokens])
                guard.record(loss=loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if fault is not None and step >= FAULT:
                    with torch.no_grad():
                        bias[seed % NUM_EXPERTS] += 0.5 if fault == "collapse" else -2.0
        return read_journal(RunDirectory(Path(folder))).block


def findings(block: Block) -> set[str]:
    """Return the symptoms that the detector reports, with the layer."""
    detector = Experts()
    found = (f for record in block.records() for f in detector.update(record))
    return {f"{finding.symptom}: {finding.signal.rpartition('/')[2]}" for finding in found}


def main() -> None:
    """Plant collapse and death ten times each; twenty runs are healthy."""
    logging.disable(logging.CRITICAL)
    wanted = {"collapse": Symptom.EXPERT_COLLAPSE, "dead": Symptom.DEAD_EXPERTS}
    rows = []
    for kind, symptom in wanted.items():
        right = 0
        for seed in range(10):
            found = findings(train(kind, seed))
            right += f"{symptom}: layers.{seed % 3}.moe.gate" in found
        rows.append((kind, f"{right} of 10", "found in its layer"))
        print(*rows[-1], file=sys.stderr, flush=True)
    silent = [findings(train(None, 100 + seed)) for seed in range(20)]
    rows.append(("none", f"{sum(not found for found in silent)} of 20", "silent"))
    print(*rows[-1], [f for f in silent if f], file=sys.stderr, flush=True)
    publish("Experts", "scripts/bench experts", table(("planted", "runs", ""), rows))


if __name__ == "__main__":
    main()
