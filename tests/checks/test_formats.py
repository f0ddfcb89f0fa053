"""Every format becomes the same plan, with the user's own lines and syntax in the fixes."""

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.plans import HEALTHY
from tests.kit.cases import examples

from trimtab.checks import check_config, read_config
from trimtab.checks.config_file import FIELDS
from trimtab.checks.formats.reading import FixLine
from trimtab.checks.formats.syntax import read_flags
from trimtab.checks.plan import LossScaling, NormPlace, Precision, Shape
from trimtab.checks.report import CheckReport
from trimtab.core.config import Config
from trimtab.core.errors import TrimtabError, UnreadablePlan

DATA = Path(__file__).parent / "data"

MEGATRON = """#!/bin/bash
#SBATCH --nodes=48
LR=6e-5
HIDDEN=4096
TRAIN_TOKENS=2_000_000_000
SAMPLES=$((TRAIN_TOKENS / 2048))
GPT_ARGS=" \\
    --num-layers 30 \\
    --hidden-size $HIDDEN \\
    --seq-length 2048 \\
    --micro-batch-size 2 \\
    --global-batch-size ${BATCH:-512} \\
    --train-samples $SAMPLES \\
    --lr $LR --min-lr 6e-6 --lr-decay-style cosine \\
    --lr-warmup-samples 183_105 \\
    --adam-beta2 0.95 \\
    --weight-decay 1e-1 \\
    --clip-grad 1.0 \\
    --init-method-std 0.0048 \\
    --fp16 --loss-scale 1 \\
    --log-interval 1 \\
    --seed $UNKNOWN \\
    --save-interval 100 # often enough
"
torchrun pretrain_gpt.py $GPT_ARGS --save $CHECKPOINTS --no-save-optim
"""

TORCHTITAN = """# a recipe
[job]
description = "Llama 3 8B training"

[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]

[optimizer]
name = "Adam"
lr = 3e-4

[lr_scheduler]
warmup_steps = 200

[training]
global_batch_size = 64
seq_len = 8192
max_norm = 1.0
steps = 5000
dtype = "bfloat16"

[checkpoint]
enable_checkpoint = false
interval = 500
"""


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def fixes(found: CheckReport, rule_id: str) -> tuple[FixLine, ...]:
    return next(o.fix for o in found.findings if o.rule.id == rule_id)


def test_hf_arguments_as_transformers_writes_them() -> None:
    found = check_config(DATA / "hf_5.22.json")
    plan = found.plan
    assert (plan.lr, plan.beta2, plan.steps, plan.warmup_steps) == (3e-4, 0.999, 2000, 60)
    assert (plan.schedule, plan.micro_batches, plan.log_steps) == (Shape.COSINE, 8, 500)
    (line,) = fixes(found, "TT083")
    assert line.text == '"logging_nan_inf_filter": false,'
    text = (DATA / "hf_5.22.json").read_text().splitlines()
    assert line.line is not None
    assert '"logging_nan_inf_filter": true' in text[line.line - 1]


def test_hf_arguments_that_are_not_set_have_the_trainers_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "args.json", '{\n  "per_device_train_batch_size": 4,\n  "fp16": true\n}')
    found = check_config(path)
    assert fixes(found, "TT083") == (FixLine(text='"logging_nan_inf_filter": false,', line=None),)
    plan = found.plan
    assert (plan.compute, plan.loss_scaling) == (Precision.FP16, LossScaling.DYNAMIC)
    assert plan.steps is None
    assert "--set steps=N" in found.notes[0]


def test_steps_that_are_given_reach_the_schedule() -> None:
    arguments = {"per_device_train_batch_size": 4, "warmup_ratio": 0.1, "num_train_epochs": 3}
    plan = read_config(arguments, known={"steps": 500}).plan
    assert (plan.steps, plan.warmup_steps, plan.decay_end) == (500, 50, 500)
    assert plan.curve is not None


def test_an_instance_is_read_like_its_json() -> None:
    @dataclasses.dataclass
    class Arguments:
        per_device_train_batch_size: int = 4
        max_grad_norm: float = 0.0

    assert fixes(check_config(Arguments()), "TT002")[0].text == '"max_grad_norm": 1.0,'


def test_the_real_training_arguments_are_read_like_their_json() -> None:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(output_dir="x", use_cpu=True, max_grad_norm=0.0)
    instance = read_config(arguments)
    assert instance.plan == read_config(json.loads(arguments.to_json_string())).plan
    assert instance.plan.clip_norm == 0.0


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"warmup_ratio": 0.1, "max_steps": 500}, "warmup_steps", 50),
        ({"warmup_ratio": 0.1}, "warmup_steps", None),
        ({"save_strategy": "no"}, "checkpoint_steps", 0),
        ({"save_strategy": "epoch"}, "checkpoint_steps", None),
        ({"save_steps": 0.1, "max_steps": 500}, "checkpoint_steps", 50),
        ({"optim": "adamw_bnb_8bit"}, "optimizer", "adamw"),
        ({"optim": "adafactor"}, "adam", False),
        ({"lr_scheduler_type": "constant", "warmup_steps": 9}, "warmup_steps", 0),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "schedule", None),
        ({"save_only_model": True}, "saves_optimizer", False),
        ({"eval_strategy": "steps", "eval_steps": 7}, "eval_steps", 7),
    ],
)
def test_what_hf_arguments_mean(arguments: dict[str, Any], field: str, value: Any) -> None:
    plan = read_config({"per_device_train_batch_size": 1, **arguments}).plan
    assert getattr(plan, field) == value


def test_hf_flags_in_a_script(tmp_path: Path) -> None:
    script = (
        "#!/bin/sh\n"
        "LR=2e-4\n"
        "torchrun train.py \\\n"
        "    --bf16 True \\\n"
        "    --learning_rate ${LR} \\\n"
        '    --lr_scheduler_type "cosine" \\\n'
        "    --warmup_ratio 0.03 \\\n"
        "    --max_steps 5000 --max_grad_norm 0\n"
    )
    found = check_config(write(tmp_path, "run.sh", script))
    assert found.plan.lr == 2e-4
    assert found.plan.warmup_steps == 150
    assert fixes(found, "TT002") == (FixLine(text="--max_grad_norm 1.0", line=8),)


def test_schedule_settings_on_a_command_line(tmp_path: Path) -> None:
    text = (
        "python train.py --max_steps 1000 --lr_scheduler_type cosine_with_min_lr "
        """--lr_scheduler_kwargs '{"min_lr": 1e-5, "num_cycles": 0.5}' --warmup_steps 10\n"""
    )
    plan = read_config(write(tmp_path, "run.sh", text)).plan
    assert (plan.final_lr, plan.cycles, plan.warmup_steps) == (1e-5, 0.5, 10)


def test_a_megatron_script_is_parsed_and_never_executed(tmp_path: Path) -> None:
    found = check_config(write(tmp_path, "train.slurm", MEGATRON))
    plan = found.plan
    assert (plan.layers, plan.width, plan.lr, plan.batch_size) == (30, 4096, 6e-5, 512)
    assert (plan.steps, plan.warmup_steps) == (976562 // 512, 183_105 // 512)
    assert (plan.compute, plan.loss_scaling) == (Precision.FP16, LossScaling.NONE)
    assert plan.norm is NormPlace.PRE
    assert (plan.checkpoint_steps, plan.saves_optimizer) == (100, False)
    assert fixes(found, "TT040") == (FixLine(text="--bf16", line=20),)
    assert fixes(found, "TT087")[0].line == 25


def test_megatron_flags_as_its_own_tests_write_them(tmp_path: Path) -> None:
    text = (
        "MODEL_ARGS:\n  --num-layers: 32\n  --lr: 4.5e-4 # high\n  --bf16: true\n  --save: ${X}\n"
    )
    plan = read_config(write(tmp_path, "model_config.yaml", text)).plan
    assert (plan.layers, plan.lr, plan.compute) == (32, 4.5e-4, Precision.BF16)
    assert plan.beta2 == 0.999  # Megatron-LM's default
    assert plan.checkpoint_steps == 0  # a folder, but no interval


def test_a_variable_from_elsewhere_is_left_open_and_reported() -> None:
    flags = read_flags("--lr $LR --num-layers $((L * 2)) --save-interval $(date)")
    assert flags.values == {}
    assert flags.unresolved == ("lr", "num-layers", "save-interval")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=3\n--lr $A", "3"),
        ("A=3\n--lr=${A}", "3"),
        ("--lr ${A:-7}", "7"),
        ("N=2048\nT=$((N * 10 / 5))\n--lr $T", "4096"),
        ("--lr 1 --lr 2", "2"),
        ("--lr \\\n 5", "5"),
        ("--lr 5 # 6", "5"),
        ("ARGS=(\n--lr 5\n)", "5"),
        ("--lr $(rm -rf x)", None),
        ("--lr $((__import__('os')))", None),
        ("--lr $((9**9**9))", None),
    ],
)
def test_flags_of_a_script(text: str, value: str | None) -> None:
    assert read_flags(text).values.get("lr") == value


def test_a_torchtitan_toml(tmp_path: Path) -> None:
    found = check_config(write(tmp_path, "llama3.toml", TORCHTITAN))
    plan = found.plan
    assert (plan.parameters, plan.steps, plan.batch_tokens) == (8e9, 5000, 64 * 8192)
    assert (plan.weights, plan.compute) == (Precision.BF16, Precision.FP8)
    assert (plan.beta2, plan.weight_decay) == (0.95, 0.1)  # torchtitan's defaults
    assert fixes(found, "TT010") == (FixLine(text='[optimizer] name = "AdamW"', line=11),)
    assert fixes(found, "TT044") == (FixLine(text='[training] dtype = "float32"', line=22),)
    assert fixes(found, "TT080") == (
        FixLine(text="[checkpoint] enable = true, [checkpoint] interval = 100", line=26),
    )
    assert fixes(found, "TT049")[0].text == '[float8] filter_fqns = ["output"]'


def test_the_json_that_torchtitan_saves_and_its_rate_below_zero() -> None:
    found = check_config(DATA / "torchtitan_0.3.json")
    plan = found.plan
    assert (plan.lr, plan.beta2, plan.epsilon) == (3e-4, 0.95, 1e-8)
    assert plan.curve is not None
    assert plan.curve.lr[-1] < 0
    (line,) = fixes(found, "TT030")
    assert line == FixLine(text='"lr_scheduler": {"total_steps": 1000}', line=37)


def test_our_own_table_with_its_rules_off(tmp_path: Path) -> None:
    text = (
        "[check]\noff = ['TT025']\n[training]\noptimizer = 'adamw'\nlr = 3e-4\nwarmup_steps = 0\n"
    )
    path = write(tmp_path, "trimtab.toml", text + "clip_norm = 0\n")
    found = check_config(path)
    assert fixes(found, "TT002") == (FixLine(text="clip_norm = 1.0", line=7),)
    assert found.off == ("TT025",)
    assert "TT025" not in {o.rule.id for o in found.findings}
    assert Config.from_toml(path).check.off == ("TT025",)


def test_our_own_table_in_a_pyproject(tmp_path: Path) -> None:
    text = "[project]\nname = 'x'\n[tool.trimtab.training]\nclip_norm = 0.0\n"
    assert fixes(check_config(write(tmp_path, "pyproject.toml", text)), "TT002")[0].line == 4


def test_a_tables_schedule_of_points() -> None:
    plan = read_config({"steps": 11, "lr_points": [[0, 0.0], [5, 1.0], [10, 0.0]]}).plan
    assert plan.curve is not None
    np.testing.assert_allclose(plan.curve.lr[[0, 1, 5, 10]], [0.0, 0.2, 1.0, 0.0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lrr": 1.0, "lr": 1.0}, "did you mean 'lr'"),
        ({"learning_rte": 1.0, "lr": 1.0}, "did you mean 'learning_rate', which is called lr"),
        ({"eps": 1e-8, "lr": 1.0}, "no setting 'eps'; it is called epsilon there"),
        ({"max_grad_norm": 1.0, "fp16": True, "bf16": True}, "fp16 and bf16 are both true"),
        ({"lr": "high"}, "lr is 'high', which is not a number"),
        ({"steps": 1.5}, "not a whole number"),
        ({"qk_norm": 1}, "not true or false"),
        ({"lr": float("nan")}, "lr cannot be nan"),
        ({"steps": 10**20}, "steps cannot be"),
        ({"width": 0}, "width must be above 0, got 0"),
        ({"warmup_steps": -1}, "warmup_steps must be 0 or more"),
        ({"schedule": "cosin"}, "it can be constant, linear, cosine"),
        ({"lr_points": [1]}, "two or more pairs"),
        ({"nothing": 1}, "no known format"),
        ({"max_grad_norm": "x"}, "max_grad_norm is 'x', which is not a number"),
        ({"max_grad_norm": 1.0, "max_steps": float("nan")}, "not a whole number"),
        ({"max_grad_norm": 1.0, "bf16": "maybe"}, "not true or false"),
        (3, "a int is not a training config"),
    ],
)
def test_what_cannot_be_read_is_reported(config: Any, message: str) -> None:
    with pytest.raises(UnreadablePlan, match=message):
        read_config(config)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", b"{", "starts like JSON"),
        ("x.toml", b"a = [", "cannot be read as TOML"),
        ("x.sh", b"echo hello", "no known format"),
        ("x.yaml", b"resolution: 512\n", "no known format"),
        ("x.bin", b"\xff\xfe\x00", "cannot be read as text"),
        ("x.txt", b"  \n", "empty"),
    ],
)
def test_a_file_that_is_no_config_is_reported(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnreadablePlan, match=message):
        read_config(path)
    with pytest.raises(UnreadablePlan, match="not a file"):
        read_config(tmp_path)


_FLAGS = ["--lr", "--num-layers", "--fp16", "--max_steps", "--max_grad_norm", "--warmup_ratio"]
_VALUES = ["=", "$X", "X=3", "${X:-4}", "$((X/0))", "1e-4", "nan", "-1", "inf", "1_000", "true"]
_SYNTAX = ["'", '"', "\\", "\n", "#", "{", "}", "[a]", "a=1", ":"]


@given(
    st.one_of(
        st.text(), st.lists(st.sampled_from(_FLAGS + _VALUES + _SYNTAX), max_size=12).map(" ".join)
    )
)
@settings(max_examples=examples(150), deadline=None)
def test_no_text_makes_the_readers_fall_over(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(text, encoding="utf-8", errors="replace")
        with contextlib.suppress(TrimtabError):
            check_config(path)


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)),
        st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.just("cosine")),
        max_size=3,
    )
)
@settings(max_examples=examples(150), deadline=None)
def test_no_plan_makes_a_rule_fall_over(changes: dict[str, Any]) -> None:
    with contextlib.suppress(TrimtabError):
        check_config({**HEALTHY, "steps": 50, **changes})


@pytest.mark.parametrize(
    "text",
    [
        '{"lr_scheduler": {"total_steps": 800, "decay_ratio": Infinity}}',
        '{"lr_scheduler": {"total_steps": 800, "decay_ratio": NaN}}',
        '{"per_device_train_batch_size": 4, "learning_rate": 1e-3, "max_steps": 2000, '
        '"logging_strategy": "steps", "save_strategy": "steps", "save_steps": NaN}',
        f'{{"training": {{"steps": {"9" * 400}}}}}',
        f'{{"lr": {"9" * 400}}}',
    ],
)
def test_numbers_that_no_run_can_use_are_an_error_of_ours(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UnreadablePlan):
        read_config(file)
