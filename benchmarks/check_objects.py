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

from benchmarks.results import Headline, publish, table
from trimtab.checks.objects.learning_rate import MAX_SLOPE, coordinate_check, lr_range_test
from trimtab.checks.objects.run import check
from trimtab.checks.rule import Level

WIDTHS = (64, 128, 256, 512)
MAX_SECONDS = 120.0
MIN_CLEAN = 12


Part = tuple[list[str], list[Headline]]
"""Paragraphs, and headlines."""


def faults() -> Part:
    """Every fault with all checks: is it found by its own, and what does it find without one?"""
    clean = check(**healthy())
    missed = [
        f"{fault.id} ({fault.what})"
        for fault in FAULTS
        if fault.id not in check(**fault.make()).ids
    ]
    text = f"Planted faults that their own check does not find: {', '.join(missed) or 'none'}."
    found = f"{len(FAULTS) - len(missed)} of {len(FAULTS)}"
    return [text], [
        ("planted faults found by their own check", found, "all"),
        ("findings in the same run without a fault", len(clean.ids), 0),
    ]


def architectures() -> Part:
    """Healthy models of transformers: errors would be false."""
    rows, clean = [], 0
    for name in NAMES:
        report = check(**setup(name))
        clean += not report.count(Level.ERROR) and not report.changed
        seen = {result.rule.id: result.what for result in report.results}
        rows.append(
            [
                name,
                ", ".join(report.ids),
                seen.get("PF050", "").split(" in ")[0],
            ]
        )
    columns = ["model", "findings", "one batch"]
    text = (
        "Small configs of transformers with random weights. One batch: its loss before and after "
        "30 steps on it."
    )
    what = "healthy architectures without an error"
    return [text, table(columns, rows)], [(what, f"{clean} of {len(NAMES)}", f"{MIN_CLEAN} of 12")]


def mup() -> Part:
    """The lab's GPT, with muP and without, and the range test on it."""
    powers, verdicts = {}, []
    for label, is_mup in (("muP", True), ("standard", False)):
        found = coordinate_check(make_at_width(is_mup=is_mup), WIDTHS)
        powers[label] = ", ".join(f"{layer.slope:+.2f}" for layer in found.layers)
        verdicts.append(found.is_stable)
    rates = lr_range_test(**make_at_width(is_mup=False)(64))
    text = (
        f"Coordinate check over widths {', '.join(map(str, WIDTHS))}: the change of each layer's "
        "output after 4 steps grows with these powers of the width, muP "
        f"{powers['muP']}; standard {powers['standard']}; stable is at most {MAX_SLOPE}. "
        f"Learning-rate range test at width 64: stopped at {rates.highest or 0:.2g} by "
        f'"{rates.stop}"; the loss falls fastest near {rates.steepest:.2g} and not any more from '
        f"{rates.turning:.2g} on; advised {rates.advised or 0:.2g}."
    )
    told = verdicts == [True, False]
    return [text], [("muP and standard parametrisation told apart", "yes" if told else "NO", "yes")]


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
    body = (
        f"{report.source}, with 2 threads: {used:.0f} s of processor time, "
        f"{len(report.results) - len(report.not_run)} rules ran, {report.count(Level.ERROR)} "
        f"errors, {len(report.changed)} objects changed."
    )
    what = "seconds for a model of 50 million parameters"
    headline = (what, f"{report.seconds:.0f}", f"{MAX_SECONDS:.0f}")
    publish("Check of objects: time", "scripts/bench check_objects time", body, [headline])


PARTS: dict[str, Callable[[], Part]] = {
    "faults": faults,
    "architectures": architectures,
    "mup": mup,
}


def main(names: list[str]) -> None:
    """Publish the time, or all other parts; some of them are only printed."""
    if names == ["time"]:
        duration()
        return
    found = [PARTS[name]() for name in names or PARTS]
    body = "\n\n".join(paragraph for paragraphs, _ in found for paragraph in paragraphs)
    if names:
        print(body)
    else:
        headlines = [headline for _, some in found for headline in some]
        publish("Check of objects", "scripts/bench check_objects", body, headlines)


if __name__ == "__main__":
    main(sys.argv[1:])
