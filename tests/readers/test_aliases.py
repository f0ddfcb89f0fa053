import pytest

from trimtab.core import signals
from trimtab.core.signals import Quality
from trimtab.readers.aliases import DATA_POSITION, STEP, alias_table, fold, name_columns

ALIASES = alias_table().aliases
WORDED = alias_table().worded

CANONICAL = {
    value for name, value in vars(signals).items() if name.isupper() and isinstance(value, str)
}
"""A new one that holds the word loss needs a place in the table, or it may be guessed."""

SPELLINGS = {
    "adversary_loss": ["Disc Loss", "d_loss", "loss/D", "discriminator_loss"],
    "loss": ["loss", "Loss", "train_loss", "training_loss", "loss/train", "train/loss", "lm loss"],
    "grad_norm": ["grad norm", "grad-norm", "gradnorm", "gnorm", "global_grad_norm", "Grad.Norm"],
    "lr": ["learning rate", "learning_rate", "lr", "LR", "lr-AdamW", "lr-DecoupledLionW/group0"],
    "step": [
        *("step", "Step", "iteration", "iter", "global_step", "_step", "trainer/global_step"),
        *("update", "num_updates"),
    ],
    "loss_scale": ["loss_scale", "loss scale", "loss-scale", "Train/Samples/loss_scale"],
    "tokens_per_second": ["tokens_per_s", "tok/s", "tps", "tokens_per_sec", "train/tok_per_sec"],
    "eval_loss": ["val_loss", "eval/loss", "eval_loss", "validation loss", "lm loss validation"],
    "step_seconds": ["step_time_s", "iteration time", "step_time_ms"],
    "param_norm": ["params-norm", "params norm"],
    "param_norm/wte.weight": ["l2_norm/param/wte.weight"],
    "grad_norm/h.0": ["l2_norm/grad/h.0"],
    "clipped_grad_norm": ["learning/grad_norm"],
    "update_norm/lm_head": ["l2_norm/update/lm_head"],
}


def test_every_canonical_signal_keeps_its_name() -> None:
    for signal in CANONICAL:
        column = f"{signal}layer" if signal.endswith("/") else signal
        assert name_columns([column]).foreign == {column: column}


def test_the_table_is_valid_and_every_alias_maps_to_one_known_signal() -> None:
    known = {*CANONICAL, STEP, DATA_POSITION}
    for alias in (*ALIASES, *WORDED):
        assert alias.signal.removesuffix("*") in known or alias.signal.removesuffix("/*") in known
    for alias in ALIASES:
        assert alias.name == alias.name.strip()
        assert alias.name.isascii()
        assert alias.scale in (1.0, 0.001, -1.0)
        assert 1 >= alias.name.count("*") >= alias.signal.count("*")
        column = alias.name.replace("*", "middle")
        assert name_columns([column]).foreign == {alias.signal.replace("*", "middle"): column}
        if "*" not in alias.name:
            assert name_columns([column.upper()]).foreign == {alias.signal: column.upper()}
    for alias in WORDED:
        words = alias.name.split()
        backwards = f"train/{' '.join(reversed(words))} (mean)"
        for column in ("_".join(words), backwards, alias.name.title()):
            assert name_columns([column]).foreign == {alias.signal: column}
    folded = [fold(alias.name) for alias in ALIASES]
    assert len(folded) == len(set(folded))
    assert len(WORDED) == len({frozenset(alias.name.split()) for alias in WORDED})


def test_times_are_taken_only_where_the_unit_is_known() -> None:
    for alias in ALIASES:
        if alias.signal in (signals.STEP_SECONDS, signals.DATA_SECONDS):
            milliseconds = "ms" in alias.name
            assert alias.scale == (0.001 if milliseconds else 1.0)
    assert name_columns(["loss", "step_time", "dt", "time"]).foreign.keys() == {
        *("loss", "step_time", "dt", "time")
    }


@pytest.mark.parametrize(
    ("signal", "column"),
    [(signal, column) for signal, columns in SPELLINGS.items() for column in columns],
)
def test_common_spellings(signal: str, column: str) -> None:
    assert name_columns([column]).foreign == {signal: column}


@pytest.mark.parametrize(
    "column",
    [
        *("param_norm_ratio", "throughput", "loss_metrics/global_max_loss", "score", "learning"),
        *("eval/kl", "val_kl", "critic/kl", "kl_coef", "ref_kl_coef", "target_kl", "kl_max"),
        *("best_reward", "reward_max", "reward_ema", "reward_scale", "rewards/chosen"),
        *("critic/lr", "max_lr", "initial_lr", "lr_scheduler", "lr_decay", "warmup_lr"),
        *("critic/grad_norm", "max_grad_norm", "grad_norm_clip", "grad_norm_std"),
        *("entropy_coef", "router entropy", "tis_clipfrac", "vf_clipfrac", "clip_range"),
        *("pg_clipfrac_lower", "clip_ratio/high_mean", "response_length/max", "prompt_length/mean"),
        *("rollout/total_lengths", "max_completion_length", "value_loss_coef", "loss_scale_window"),
        *("Episode_Reward/upright", "val-core/gsm8k/reward/mean@1", "mean_token_accuracy"),
    ],
)
def test_what_only_looks_like_a_signal_keeps_its_name(column: str) -> None:
    assert name_columns([column]).foreign == {column: column}


@pytest.mark.parametrize(
    ("columns", "signal", "chosen"),
    [
        (["actor/ppo_kl", "actor/kl_loss"], "kl", "actor/kl_loss"),  # the more special words
        (["rollout/rewards", "rollout/raw_reward"], "reward", "rollout/raw_reward"),
        (["Loss", "loss"], "loss", "loss"),  # an exact name beats a folded one
        (["Loss", "lm loss"], "loss", "lm loss"),
        (["l2_norm/param/x", "param_norm/x"], "param_norm/x", "param_norm/x"),
        (["trimtab/loss", "trimtab/grad_norm"], "grad_norm", "trimtab/grad_norm"),
        (["decoder loss", "lm loss"], "loss", "lm loss"),
    ],
)
def test_of_several_names_the_better_one_is_taken(
    columns: list[str], signal: str, chosen: str
) -> None:
    assert name_columns(columns).foreign[signal] == chosen


def test_the_order_of_the_table_decides_and_is_reported() -> None:
    naming = name_columns(["train/loss", "loss", "lm loss"])
    assert naming.foreign == {"loss": "loss", "train/loss": "train/loss", "lm loss": "lm loss"}
    assert naming.notes == (
        "loss is taken from 'loss'; kept under its own name: 'train/loss', 'lm loss'.",
    )


def test_quality_scale_and_remark_come_from_the_table() -> None:
    naming = name_columns(["loss_ema", "step_time_ms", "tps_per_gpu"])
    assert naming.aliases["loss_ema"].quality is Quality.SMOOTHED
    assert naming.aliases["step_time_ms"].scale == 0.001
    assert naming.notes == (
        "tokens_per_second is taken from 'tps_per_gpu': per device, not over all ranks.",
    )


def test_the_only_column_with_loss_in_its_name_is_guessed_and_reported() -> None:
    naming = name_columns(["step", "my_lossy_thing", "eval/xloss", "aux_loss", "z_loss"])
    assert naming.foreign["loss"] == "my_lossy_thing"
    assert naming.notes == ("loss is guessed to be 'my_lossy_thing'; no known name fits.",)


@pytest.mark.parametrize(
    "columns",
    [
        ["decoder loss", "encoder loss"],
        ["Evaluation.Loss.x"],
        ["valloss"],
        ["loss_metrics/global_max_loss"],
        ["loss_scale"],
        ["accuracy"],
    ],
)
def test_no_guess_where_it_is_not_plain(columns: list[str]) -> None:
    assert "loss" not in name_columns(columns).foreign


def test_long_lists_of_names_are_cut() -> None:
    [note] = name_columns(["lr", *(f"lr-Opt{number}/group0" for number in range(20))]).notes
    assert note.endswith("'lr-Opt7/group0' and 12 more.")
