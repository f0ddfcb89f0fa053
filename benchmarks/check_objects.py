"""Measures `trimtab.check`: planted faults, healthy architectures, muP over 4 widths, time for 50M.

scripts/bench check_objects [faults|architectures|mup|time]
"""

import sys
import time
from collections.abc import Callable

import torch
from tests.kit.check_objects.architectures import NAMES, optimizer_for, scheduler_for, setup
from tests.kit.check_objects.faults import FAULTS, Setup, healthy
from tests.kit.check_objects.widths import make_at_width

from benchmarks.results import publish, table
from trimtab.checks.objects.learning_rate import MAX_SLOPE, coordinate_check, lr_range_test
from trimtab.checks.objects.run import check
from trimtab.checks.rule import Level

WIDTHS = (64, 128, 256, 512)
MAX_SECONDS = 120.0
MIN_FOUND, MIN_CLEAN = 30, 12


def faults() -> None:
    """Every fault with all checks: is it found by its own, and what else is reported?"""
    clean = check(**healthy())
    rows, found = [], 0
    for fault in FAULTS:
        report = check(**fault.make())
        is_found = fault.id in report.ids
        found += is_found
        others = [name for name in report.ids if name != fault.id]
        rows.append([fault.id, fault.what, "found" if is_found else "MISSED", ", ".join(others)])
    head = (
        f"Found by its own check: {found} of {len(FAULTS)} (bar: {MIN_FOUND} faults). The same run "
        f"without a fault: {len(clean.ids)} findings."
    )
    body = table(["check", "planted fault", "result", "also reported"], rows)
    publish(
        "Check of objects: planted faults",
        "scripts/bench check_objects faults",
        f"{head}\n\n{body}",
    )


def architectures() -> None:
    """Healthy models of transformers: errors would be false."""
    rows, clean = [], 0
    for name in NAMES:
        report = check(**setup(name))
        errors, warnings = report.count(Level.ERROR), report.count(Level.WARNING)
        clean += not errors and not report.changed
        seen = {result.rule.id: result.what for result in report.results}
        rows.append(
            [
                name,
                errors,
                warnings,
                ", ".join(report.ids),
                len(report.passed),
                " ".join(result.rule.id for result in report.not_run),
                seen.get("PF050", "").split(" in ")[0],
                seen.get("PF021", "").rpartition("by ")[2].split(" ")[0],
                seen.get("PF011", "").rpartition(": ")[2].split(" ")[0],
            ]
        )
    head = (
        f"Without an error: {clean} of {len(NAMES)} (bar: {MIN_CLEAN} of 12). Small configs of "
        "transformers with random weights; their batches are lists, in one process."
    )
    columns = [
        *("model", "errors", "warnings", "findings", "passed", "not checked"),
        *("one batch", "bf16 logits", "gradient ratio"),
    ]
    command = "scripts/bench check_objects architectures"
    publish("Check of objects: healthy architectures", command, f"{head}\n\n{table(columns, rows)}")


def mup() -> None:
    """The lab's GPT, with muP and without, and the range test on it."""
    rows = []
    for label, is_mup in (("muP", True), ("standard", False)):
        found = coordinate_check(make_at_width(is_mup=is_mup), WIDTHS)
        for layer in found.layers:
            cells = [f"{value:.3g}" for value in layer.change]
            rows.append([label, layer.name, *cells, f"{layer.slope:+.2f}"])
        rows.append([label, "verdict", *[""] * len(WIDTHS), "stable" if found.is_stable else "not"])
    columns = ["parametrisation", "layer", *(f"width {width}" for width in WIDTHS), "power"]
    rates = lr_range_test(**make_at_width(is_mup=False)(64))
    tail = (
        f"Learning-rate range test at width 64: stopped at {rates.highest or 0:.2g} by "
        f'"{rates.stop}"; the loss falls fastest near {rates.steepest:.2g} and not any more from '
        f"{rates.turning:.2g} on; advised {rates.advised or 0:.2g}."
    )
    head = f"Change of each layer's output after 4 steps; stable is a power of at most {MAX_SLOPE}."
    body = f"{head}\n\n{table(columns, rows)}\n\n{tail}"
    publish("Check of objects: coordinate check", "scripts/bench check_objects mup", body)


def large() -> Setup:
    """A Llama of 50 million parameters and its batches of 8 x 512 tokens."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=32_000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    model = hf.LlamaForCausalLM(config)
    optimizer = optimizer_for(model, 3e-4)
    batches = [torch.randint(32_000, (8, 512)) for _ in range(16)]
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler_for(optimizer, 10_000),
        "loader": [{"input_ids": ids, "labels": ids.clone()} for ids in batches],
        "steps": 10_000,
        "clip_norm": 1.0,
    }


def duration() -> None:
    """The time for a model of 50 million parameters, on all cores."""
    torch.set_num_threads(2)
    setup_50m = large()
    began = time.process_time()
    report = check(**setup_50m)
    used = time.process_time() - began
    body = table(
        [
            *("model", "seconds", "bar", "processor seconds of 2 threads"),
            *("rules that ran", "errors", "objects changed"),
        ],
        [
            [
                report.source,
                f"{report.seconds:.0f}",
                f"{MAX_SECONDS:.0f}",
                f"{used:.0f}",
                len(report.results) - len(report.not_run),
                report.count(Level.ERROR),
                len(report.changed),
            ]
        ],
    )
    publish("Check of objects: time", "scripts/bench check_objects time", body)


PARTS: dict[str, Callable[[], None]] = {
    "faults": faults,
    "architectures": architectures,
    "mup": mup,
    "time": duration,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
