# ruff: noqa: E501  (the lines are as trainers print them)
"""What trainers of policies print: each number gets the signal that it is, and no other."""

from collections.abc import Callable

import pytest
from tests.readers.shapes import Write, values

from trimtab.diagnosis import diagnose
from trimtab.readers import read_log

STEPS = range(1, 41)
Printed = Callable[[int], str]


def surrogate(step: int) -> float:
    """Return a loss that goes up and down around 0."""
    return (step * 37 % 97 - 48) / 1000


def areal(step: int) -> str:
    """A table of two columns of names, as `tabulate` draws it."""
    numbers = {
        "ppo_actor/task_reward/avg": 0.5,
        "ppo_actor/task_reward/max": 1,
        "ppo_actor/seq_len/avg": 800,
        "ppo_actor/update/actor_loss/avg": surrogate(step),
        "ppo_actor/update/approx_kl/avg": 0.01,
        "ppo_actor/update/entropy/avg": 0.3,
        "ppo_actor/update/clip_ratio/avg": 0.05,
        "ppo_actor/update/grad_norm": 0.2,
    }
    cells = [f"│ {name:32} │ {value:.4e} " for name, value in numbers.items()]
    rows = "".join(f"{one}{other}│\n" for one, other in zip(cells[:4], cells[4:], strict=True))
    return f"20250701-12:00:00.123 StatsLogger INFO: Epoch 1/10 Step {step}/200 Train step {step}/2000 done.\n╒{'═' * 90}╕\n{rows}╘{'═' * 90}╛\n"


TRAINERS: dict[str, tuple[Printed, dict[str, str]]] = {
    "NeMo-RL": (
        lambda s: (
            f"========================= Step {s}/100 =========================\n\n📊 Training Results:\n  • Loss: {surrogate(s):.4f}\n  • Generation KL Error: 0.0012\n  • Avg Reward: 0.2310\n  • Mean Generation Length: 512.1250\n\n⏱️  Timing:\n  • Total step time: 12.31s\n"
        ),
        {
            "loss": "Loss",
            "reward": "Avg Reward",
            "response_length": "Mean Generation Length",
            "logprob_gap": "Generation KL Error",
        },
    ),
    "prime-rl": (
        lambda s: (
            f"12:00:00 SUCCESS Step {s} | Time: 21.12s | Loss: {surrogate(s):.4f} | Entropy: 0.5123 | Mismatch KL: 0.0012 | Grad. Norm: 0.1234 | LR: 1.00e-06 | Throughput: 12345 tokens/s | MFU: 23.4% | Peak Mem.: 56.1 GiB\n"
        ),
        {
            "loss": "Loss",
            "entropy": "Entropy",
            "logprob_gap": "Mismatch KL",
            "grad_norm": "Grad. Norm",
            "lr": "LR",
        },
    ),
    "slime": (
        lambda s: (
            f"(MegatronTrainRayActor pid=12) log_utils.py:52 - rollout {s}: {{'rollout/raw_reward': 0.3, 'rollout/rewards': 1e-09, 'rollout/response_lengths': 3000.5, 'rollout/total_lengths': 3100.5, 'rollout/truncated': 0.1}}\n(MegatronTrainRayActor pid=12) model.py:451 - step {s}: {{'train/loss': {surrogate(s)}, 'train/pg_loss': 0.5, 'train/entropy_loss': 0.31, 'train/pg_clipfrac': 0.01, 'train/ppo_kl': 0.001, 'train/grad_norm': 0.25, 'train/lr-pg_0': 1e-06}}\n"
        ),
        {
            "loss": "train/loss",
            "reward": "rollout/raw_reward",
            "response_length": "rollout/response_lengths",
            "truncated_share": "rollout/truncated",
            "entropy": "train/entropy_loss",
            "clip_fraction": "train/pg_clipfrac",
            "kl": "train/ppo_kl",
            "grad_norm": "train/grad_norm",
            "lr": "train/lr-pg_0",
        },
    ),
    "AReaL": (
        areal,
        {
            "loss": "ppo_actor/update/actor_loss/avg",
            "reward": "ppo_actor/task_reward/avg",
            "kl": "ppo_actor/update/approx_kl/avg",
            "entropy": "ppo_actor/update/entropy/avg",
            "clip_fraction": "ppo_actor/update/clip_ratio/avg",
            "grad_norm": "ppo_actor/update/grad_norm",
        },
    ),
    "verl": (
        lambda s: (
            f"(TaskRunner pid=42) step:{s} - actor/entropy:0.323 - training/rollout_probs_diff_mean:0.003 - actor/kl_loss:0.100 - actor/kl_coef:0.001 - actor/pg_loss:{surrogate(s)} - actor/pg_clipfrac:0.001 - actor/ppo_kl:-0.000 - actor/pg_clipfrac_lower:0.000 - actor/grad_norm:0.020 - critic/score/mean:0.558 - critic/rewards/mean:0.558 - critic/rewards/max:1.000 - response_length/mean:288.698 - response_length/clip_ratio:0.000\n"
        ),
        {
            "loss": "actor/pg_loss",
            "entropy": "actor/entropy",
            "kl": "actor/kl_loss",
            "clip_fraction": "actor/pg_clipfrac",
            "grad_norm": "actor/grad_norm",
            "reward": "critic/rewards/mean",
            "response_length": "response_length/mean",
            "truncated_share": "response_length/clip_ratio",
            "logprob_gap": "training/rollout_probs_diff_mean",
        },
    ),
    "OpenRLHF": (
        lambda s: (
            f"Global step {s}: {{'policy_loss': {surrogate(s)}, 'actor_lr': 5e-07, 'ppo_clip_ratio': 0.01, 'ppo_kl': 0.001, 'vllm_kl': 0.002, 'critic_loss': 0.3, 'reward': 0.25, 'return': 0.2, 'response_length': 512.5, 'total_length': 600.1, 'kl': 0.012}}\n"
        ),
        {
            "loss": "policy_loss",
            "lr": "actor_lr",
            "clip_fraction": "ppo_clip_ratio",
            "kl": "kl",
            "logprob_gap": "vllm_kl",
            "value_loss": "critic_loss",
            "reward": "reward",
            "response_length": "response_length",
        },
    ),
    "rsl_rl": (
        lambda s: (
            f"                      \x1b[1m Learning iteration {s}/1500 \x1b[0m\n\n                       Computation: 57897 steps/s (collection: 1.551s, learning 0.147s)\n             Mean action noise std: 0.98\n          Mean value_function loss: 0.0273\n               Mean surrogate loss: {surrogate(s):.4f}\n                 Mean entropy loss: 9.9339\n                       Mean reward: 16.65\n               Mean episode length: 512.00\n      Episode_Reward/track_lin_vel: 0.5000\n{'-' * 80}\n                   Total timesteps: {98304 * s}\n                    Iteration time: 1.70s\n"
        ),
        {
            "loss": "Mean surrogate loss",
            "value_loss": "Mean value_function loss",
            "entropy": "Mean entropy loss",
            "reward": "Mean reward",
            "response_length": "Mean episode length",
            "step_seconds": "Iteration time",
        },
    ),
    "ms-swift": (
        lambda s: (
            f"{{'loss': '{surrogate(s):.4f}', 'grad_norm': '0.15', 'learning_rate': '5e-06', 'completions/mean_length': '256.1', 'reward': '0.4', 'kl': '0.0123', 'epoch': '0.1', 'global_step/max_steps': '{s}/300', 'elapsed_time': '6m 42s', 'memory(GiB)': '114.2', 'train_speed(s/it)': '201.1'}}\n"
        ),
        {
            "loss": "loss",
            "grad_norm": "grad_norm",
            "lr": "learning_rate",
            "response_length": "completions/mean_length",
            "reward": "reward",
            "kl": "kl",
        },
    ),
}

RL = {"reward", "kl", "entropy", "clip_fraction", "value_loss", "logprob_gap", "ratio"}
SIGNALS = RL | {"loss", "lr", "grad_norm", "response_length", "truncated_share", "step_seconds"}


@pytest.mark.parametrize("name", TRAINERS)
def test_what_trainers_of_policies_print(write: Write, name: str) -> None:
    printed, wanted = TRAINERS[name]
    run = read_log(write("".join(map(printed, STEPS)), "train.log"))
    assert run.block.step.tolist() == list(STEPS)
    assert values(run.block, "loss") == pytest.approx([surrogate(step) for step in STEPS])
    assert {signal: run.names[signal] for signal in SIGNALS & run.names.keys()} == wanted


def test_an_entropy_is_not_turned_around_though_it_is_called_a_loss(write: Write) -> None:
    for value in (0.31, -0.31):
        text = "".join(
            f"step {s} loss {surrogate(s)} entropy_loss {value} reward 1\n" for s in STEPS
        )
        assert set(values(read_log(write(text, "train.log")).block, "entropy")) == {0.31}


def test_a_list_of_rewards_is_no_reward(write: Write) -> None:
    text = "".join(f"[step {s:04d}] rewards=[0,1] loss={surrogate(s)} kl=0.01\n" for s in STEPS)
    assert "reward" not in read_log(write(text, "train.log")).names


def test_what_takes_time_is_no_rate_and_no_loss(write: Write) -> None:
    text = "".join(f"step {s} loss {50 - s}.5 lr 0.147s grad norm 12 ms\n" for s in STEPS)
    assert read_log(write(text, "train.log")).names.keys() & SIGNALS == {"loss"}
    with pytest.raises(Exception, match="called a loss"):
        read_log(write("".join(f"step {s} loss 0.{s}s\n" for s in STEPS), "train.log"))


def test_one_infinite_value_loss_is_found(write: Write) -> None:
    printed = TRAINERS["rsl_rl"][0]
    text = "".join(printed(s).replace("0.0273", "inf" if s == 30 else "0.02") for s in STEPS)
    [found] = diagnose(write(text, "train.log")).incidents
    assert found.incident.findings[0].symptom == "value_loss is not finite"


def test_a_line_that_ray_cuts_keeps_what_is_whole(write: Write) -> None:
    rest = " - ".join(f"timing_s/part_{'x' * 40}_{place}:0.125" for place in "abcdefgh" * 9)
    texts = []
    for step in STEPS:
        early = " - val-core/gsm8k/acc/mean@1:0.565" if step % 10 == 0 else ""
        line = f"step:{step}{early} - actor/pg_loss:{surrogate(step)} - {rest} - training/global_step:{step}.000 - perf/mfu:0.343"
        texts.append(f"(TaskRunner pid=42) {line[:4096] if early else line}\n")
    run = read_log(write("".join(texts), "train.log"))
    assert run.block.step.tolist() == list(STEPS)
    assert values(run.block, "loss") == [surrogate(step) for step in STEPS]
