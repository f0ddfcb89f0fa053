"""The faults of fine-tuning that public threads tell of: who finds each, and when.

before the first step   `trimtab check`, on the objects or on the config
within 50 steps         the callback of a Trainer, and the Trainer's own log
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.kit.hf import Sequences, TinyForCausalLM, make_trainer
from tests.kit.tiny import journal_of
from torch import nn

from trimtab.checks.catalogue import PLAN_RULES, object_rules
from trimtab.checks.objects.run import check
from trimtab.core.block import Block
from trimtab.core.findings import Symptom
from trimtab.integrations.hf import TrimtabCallback
from trimtab.judge import Judge
from trimtab.readers.reading import read_log

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

END, IGNORED = 1, -100
BEFORE = ("PF012", "PF030", "PF053", "PF054", "PF062", "TT044", "TT100", "TT101")
"""The rules on the objects of a fine-tuning."""

Setup = dict[str, Any]


class Lora(nn.Module):
    """An adapter around a frozen layer, with the names of loralib."""

    def __init__(self, base: nn.Linear, alpha: float = 8.0) -> None:
        super().__init__()
        self.base, self.r, self.scaling = base, 4, alpha / 4
        self.lora_A = nn.Parameter(torch.randn(4, base.in_features) / 4)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)
        return y


def adapted(alpha: float = 8.0) -> Any:
    model = TinyForCausalLM().requires_grad_(False)
    model.config.eos_token_id, model.config.use_cache = END, False
    for layer in model.model.layers:
        layer.self_attn.v_proj = Lora(layer.self_attn.v_proj, alpha)
    return model


def answers(count: int = 12) -> list[dict[str, torch.Tensor]]:
    """Batches of a prompt, an answer of its own length, the end token and padding."""
    found, dice = [], torch.Generator().manual_seed(3)
    for _ in range(count):
        ids = torch.randint(2, 60, (4, 12), generator=dice)
        mask = torch.arange(12) < torch.randint(8, 12, (4, 1), generator=dice)
        ids[torch.arange(4), mask.sum(1) - 1] = END
        labels = torch.where(mask & (torch.arange(12) > 3), ids, IGNORED)
        found.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
    return found


def healthy(alpha: float = 8.0, lr: float = 2e-4) -> Setup:
    model = adapted(alpha)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    return {"model": model, "optimizer": optimizer, "loader": answers(), "pretrained": True}


def with_labels(change: Callable[[torch.Tensor], torch.Tensor]) -> Setup:
    setup = healthy()
    for batch in setup["loader"]:
        batch["labels"] = change(batch["labels"])
    return setup


def in_half() -> Setup:
    setup = healthy()
    for group in setup["optimizer"].param_groups:
        for parameter in group["params"]:
            parameter.data = parameter.data.half()
    return setup


def packed(*, has_mask: bool) -> Setup:
    """Three texts in a row. With a mask of ones transformers no longer takes them apart."""
    setup, places = healthy(), torch.arange(12).repeat(1, 3)
    batches = []
    for batch in setup["loader"]:
        ids = batch["input_ids"][:3].reshape(1, -1)
        row = {"input_ids": ids, "labels": ids.clone(), "position_ids": places}
        batches.append(row | ({"attention_mask": torch.ones_like(ids)} if has_mask else {}))
    return setup | {"loader": batches}


def cut_off() -> Setup:
    """What the adapters put out is not used, as with an adapter that is not active."""
    setup = healthy()
    for layer in setup["model"].model.layers:
        layer.self_attn.v_proj.scaling = 0.0
    return setup


def held_too_early() -> Setup:
    """The optimizer was made of the base model, before it was frozen and got adapters."""
    setup = healthy()
    model = setup["model"]
    base = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    return setup | {"optimizer": torch.optim.AdamW(base, lr=2e-4)}


@pytest.mark.parametrize(
    ("found_by", "make"),
    [
        (None, healthy),
        (None, lambda: packed(has_mask=False)),
        ("PF053", lambda: with_labels(lambda labels: torch.full_like(labels, IGNORED))),
        ("PF054", lambda: with_labels(lambda labels: labels.where(labels != END, IGNORED))),
        ("TT044", in_half),
        ("TT100", lambda: healthy(alpha=800.0)),
        ("TT101", lambda: healthy(lr=1e-5)),
        ("PF062", lambda: packed(has_mask=True)),
        ("PF012", cut_off),
        ("PF030", held_too_early),
    ],
)
def test_check_finds_it_before_the_first_step(
    found_by: str | None, make: Callable[[], Setup]
) -> None:
    report = check(**make(), off={*object_rules(), *PLAN_RULES}.difference(BEFORE))
    assert report.ids == (() if found_by is None else (found_by,))
    assert all(result.how or result.fix for result in report.findings)


def test_the_adapters_of_peft_are_read() -> None:
    peft = pytest.importorskip("peft")
    base = TinyForCausalLM()
    config = peft.LoraConfig(r=4, lora_alpha=800, target_modules=["v_proj"])
    model = peft.get_peft_model(base, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    off = {*object_rules(), *PLAN_RULES} - {"TT100"}
    assert check(model, optimizer, loader=answers(), off=off).ids == ("TT100",)


def judged(run: Block) -> list[tuple[int, str]]:
    """The findings that opened or joined an incident, with their steps."""
    judge = Judge()
    judge.update(run)
    judge.finish()
    return [(f.step, f.symptom) for incident in judge.incidents for f in incident.findings]


def watched(folder: Path, model: Any, data: Any, *more: Any) -> Any:
    trainer = make_trainer(folder, TrimtabCallback(), model=model, data=data, max_steps=24)
    for callback in more:
        trainer.add_callback(callback)
    trainer.train()
    return trainer


def test_masked_labels_are_found_live_and_in_the_log(tmp_path: Path) -> None:
    data = Sequences(96)
    for item in data.items:
        item["labels"] = torch.full_like(item["labels"], IGNORED)
    trainer = watched(tmp_path, adapted(), data)
    assert judged(journal_of(tmp_path))[0] == (4, Symptom.NO_TARGETS)
    trainer.state.save_to_json(str(tmp_path / "trainer_state.json"))
    log = read_log(tmp_path / "trainer_state.json").block
    # The reader knows that a Trainer writes 0 for a loss that is not finite.
    assert judged(log)[:2] == [(1, Symptom.NONFINITE_LOSS), (4, Symptom.NO_TARGETS)]


class Poison(transformers.TrainerCallback):  # type: ignore[misc]
    """Makes an adapter NaN after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **unused: Any) -> None:
        if state.global_step == 8:
            model.model.layers[0].self_attn.v_proj.lora_B.data.fill_(torch.nan)


def test_an_adapter_of_nan_is_no_success(tmp_path: Path) -> None:
    watched(tmp_path, adapted(), None, Poison())
    assert judged(journal_of(tmp_path))[0] == (9, Symptom.NONFINITE_LOSS)


def test_an_adapter_that_gets_no_gradient_is_found(tmp_path: Path) -> None:
    model = adapted()
    for layer in model.model.layers:
        layer.self_attn.v_proj.lora_B.requires_grad_(False)  # and A gets B times nothing
    watched(tmp_path, model, None)
    step, symptom = judged(journal_of(tmp_path))[0]
    assert (symptom, step <= 20) == (Symptom.FROZEN, True)


def test_an_optimizer_of_frozen_weights_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import trimtab

    setup = held_too_early()
    caplog.set_level(logging.WARNING, "trimtab")
    trimtab.watch(setup["model"], setup["optimizer"], run_dir=tmp_path).close()
    assert "make it after the adapters are added" in caplog.text
