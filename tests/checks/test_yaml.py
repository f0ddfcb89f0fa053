"""YAML configs: the same plans, with line numbers, and never anything but plain data."""

import sys
from pathlib import Path

import pytest

from trimtab.checks import check_config, read_config
from trimtab.checks.plan import Precision, Shape
from trimtab.core.errors import MissingExtra, UnreadablePlan

HF = """# a recipe of alignment-handbook
model_name_or_path: mistralai/Mistral-7B-v0.1
bf16: true
learning_rate: 2e-5
lr_scheduler_type: cosine
lr_scheduler_kwargs:
  min_lr: 2.0e-06
max_steps: 1000
max_grad_norm: 0
per_device_train_batch_size: 8
"""

AXOLOTL = """base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
warmup_steps: 10
"""

TITAN = """metrics: {log_freq: 1}
optimizer: {name: AdamW, lr: 3e-4}
training:
  steps: 1000
  max_norm: 0.0
checkpoint:
  enable: true
  interval: 100
"""

TABLE = """
common: &common
  beta2: 0.95
training:
  <<: *common
  steps: 1000
  lr: 3e-4
  clip_norm: 0
check:
  off: [TT064]
"""


def write(tmp_path: Path, text: str, name: str = "config.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def fixes(path: Path) -> dict[str, int | None]:
    """Return every line of every fix with the line number it refers to."""
    found = check_config(path).findings
    return {line.text: line.line for finding in found for line in finding.fix}


def test_hf_arguments_in_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, HF, "recipe.yml")
    plan = read_config(path).plan
    assert (plan.lr, plan.steps, plan.clip_norm, plan.final_lr) == (2e-5, 1000, 0, 2e-6)
    assert plan.beta2 == 0.999, "HF's default, which is what will run"
    assert fixes(path)["max_grad_norm: 1.0"] == 9


def test_axolotl(tmp_path: Path) -> None:
    reading = read_config(write(tmp_path, AXOLOTL), {"steps": 500})
    plan = reading.plan
    assert reading.dialect.name == "axolotl"
    assert (plan.lr, plan.warmup_steps, plan.micro_batches) == (2e-4, 10, 4)
    assert (plan.optimizer, plan.schedule, plan.compute) == ("adamw", Shape.COSINE, Precision.BF16)
    assert (plan.steps, plan.from_scratch) == (500, False)
    assert reading.lines["lr"] == 11
    assert reading.lines["schedule"] == 10
    assert reading.dialect.spellings["schedule"](None) == 'lr_scheduler: "cosine"'


def test_what_an_axolotl_config_does_not_set_is_left_open(tmp_path: Path) -> None:
    text = "base_model: x\nlearning_rate: 2e-4\nnum_epochs: 1\n"
    reading = read_config(write(tmp_path, text))
    plan = reading.plan
    assert plan.lr == 2e-4
    open_fields = (plan.optimizer, plan.beta2, plan.warmup_steps, plan.schedule, plan.log_steps)
    assert open_fields == (None,) * 5
    assert "settings that the file does not have are left open" in reading.notes


def test_torchtitan_in_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, TITAN)
    plan = read_config(path).plan
    assert (plan.lr, plan.steps, plan.clip_norm, plan.checkpoint_steps) == (3e-4, 1000, 0, 100)
    assert fixes(path)["training: {max_norm: 1.0}"] == 5


def test_a_training_table_in_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE)
    reading = read_config(path)
    assert (reading.plan.beta2, reading.plan.lr, reading.off) == (0.95, 3e-4, ("TT064",))
    assert fixes(path)["clip_norm: 1.0"] == 8
    assert read_config(write(tmp_path, "lr: 3e-4\nsteps: 10\n")).plan.lr == 3e-4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: [1, 2\n", "cannot be read as YAML: .*line 2"),
        ("lr: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("- 1\n- 2\n", "holds no settings"),
        ("# nothing\n", "holds no settings"),
        ("resolution: 512\n", "has no known format"),
        ("a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(3)) + "a: *c\n", "YAML"),
    ],
)
def test_what_is_not_a_config(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UnreadablePlan, match=message):
        read_config(write(tmp_path, text))


def test_aliases_of_aliases_do_not_fill_the_memory(tmp_path: Path) -> None:
    rows = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    text = "\n".join(["l0: &l0 [lol, lol]", *rows, "lr: 3e-4", ""])
    with pytest.raises(UnreadablePlan, match="more than 100000 values"):
        read_config(write(tmp_path, text))
    with pytest.raises(UnreadablePlan, match="more than 100000 values or 50 levels"):
        read_config(write(tmp_path, "lr: &a [*a]\n"))


def test_without_the_extra_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[yaml\]"'):
        read_config(write(tmp_path, TABLE))
