"""Experts that collapse or die, planted in a tiny mixture: found, and silence without them."""

import logging
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from tests.kit.mixtures import NUM_EXPERTS, VOCABULARY, Mixture, Model
from torch.nn import functional as F

import trimtab
from benchmarks.results import publish, table
from trimtab.core.block import Block
from trimtab.core.findings import Symptom
from trimtab.detect.state.hard_limits import Experts
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.trainer.train import EVERY_TENTH

STEPS, FAULT = 260, 60
BALANCE = 0.02
"""How far the bias of an expert moves at every step towards its fair share, as in models that are
balanced without a loss: without it, experts of such a model die by themselves."""


@torch.no_grad()
def balance(model: Model, layers: list[int]) -> None:
    """Move the biases of the routers of these layers."""
    for layer in layers:
        mixture = model.get_submodule(f"layers.{layer}.moe")
        assert isinstance(mixture, Mixture)
        mixture.gate.bias.add_(BALANCE * (1 / NUM_EXPERTS - mixture.used).sign())


def train(fault: str | None, seed: int) -> Block:
    """Train with a fault in one layer from FAULT on."""
    torch.manual_seed(seed)
    model = Model()
    bias = model.get_parameter(f"layers.{seed % 3}.moe.gate.bias")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    successor = torch.randperm(VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        with trimtab.watch(model, optimizer, run_dir=folder, config=EVERY_TENTH) as guard:
            for step in range(STEPS):
                tokens = torch.randint(0, VOCABULARY, (8, 16))
                loss = F.cross_entropy(model(tokens).transpose(1, 2), successor[tokens])
                guard.record(loss=loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                is_faulty = fault is not None and step >= FAULT
                balance(model, [n for n in range(3) if not (is_faulty and n == seed % 3)])
                if is_faulty:
                    with torch.no_grad():
                        bias[seed % NUM_EXPERTS] += 0.5 if fault == "collapse" else -2.0
        return read_journal(RunDirectory(Path(folder))).block


def findings(block: Block) -> set[str]:
    """Return the symptoms that the detector reports, with the layer."""
    detector = Experts()
    found = (f for record in block.records() for f in detector.update(record))
    return {f"{finding.symptom}: {finding.signal.rpartition('/')[2]}" for finding in found}


def found_in(case: tuple[str | None, int]) -> set[str]:
    """Train one case, and return what is found."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    return findings(train(*case))


def main() -> None:
    """Plant collapse and death ten times each; twenty runs are healthy."""
    wanted = {"collapse": Symptom.EXPERT_COLLAPSE, "dead": Symptom.DEAD_EXPERTS}
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for kind, symptom in wanted.items():
            found = pool.map(found_in, [(kind, seed) for seed in range(10)])
            places = [f"{symptom}: layers.{seed % 3}.moe.gate" for seed in range(10)]
            right = sum(place in one for place, one in zip(places, found, strict=True))
            rows.append((kind, f"{right} of 10", "found in its layer"))
            print(*rows[-1], file=sys.stderr, flush=True)
        healthy = list(pool.map(found_in, [(None, 200 + seed) for seed in range(20)]))
    silent = sum(not found for found in healthy)
    rows.append(("none", f"{silent} of 20", "silent"))
    print(*rows[-1], [found for found in healthy if found], file=sys.stderr, flush=True)
    right = sum(int(row[1].split()[0]) for row in rows[:-1])
    publish(
        "Experts",
        "scripts/bench experts",
        f"A mixture of {NUM_EXPERTS} experts in each of 3 layers, {STEPS} steps; from step {FAULT} "
        "on the router of one layer prefers one expert, or avoids one. Found: with its layer.\n\n"
        + table(("planted", "runs", ""), rows),
        [
            ("experts that collapse or die, found in their layer", f"{right} of 20", "18 of 20"),
            ("healthy mixtures without a finding", f"{silent} of 20", "20 of 20"),
        ],
    )


if __name__ == "__main__":
    main()
