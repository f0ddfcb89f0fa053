"""Which rules of `trimtab check` show in a small model: each fault against the rule's fix.

A trial is a plan with one fault. Both this plan and the one with the rule's fix are trained over
the same seeds, and the held-out losses are compared pair by pair. A rule is shown in the lab if its
fix is better in at least 9 of 10 seeds.
"""

import math
import statistics
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.checks import read_config
from trimtab.checks.catalogue import PLAN_RULES
from trimtab.checks.plan import NormPlace, Precision, TrainingPlan
from trimtab.checks.rule import Fault
from trimtab.corpus.options import RARE
from trimtab.lab.corpus.data import Batch, CorpusSplit, DataConfig, TokenCorpus, WindowDataset
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer, parameter_groups
from trimtab.lab.model.sizes import SIZES

SEEDS = 10
MIN_BETTER = 9
"""Seeds in which the fix must be better."""

STEPS = 150
LONG = 450
"""Steps of trials on weight decay, which acts slowly: the lab's study of it used 420."""

BAD_STEPS = range(100, 105)
"""The steps whose batches have only rare tokens (F02) in a trial with bad batches."""

T_975 = 2.262
"""Student's t for 10 pairs, both sides, 95 %."""

SIZE = SIZES["0.15M"]

BASE: Mapping[str, Any] = {
    "steps": STEPS,
    "from_scratch": True,
    "batch_size": 8,
    "seq_len": 32,
    "optimizer": "adamw",
    "decoupled_decay": True,
    "lr": 3e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "schedule": "cosine",
    "warmup_steps": STEPS // 10,
    "decay_end": STEPS,
    "final_lr": 3e-3 / 10,
    "cycles": 0.5,
    "layers": SIZE.layers,
    "width": SIZE.width,
    "parameters": float(SIZE.parameters),
    "norm": "pre",
    "init_std": 0.02,
    "compute": "fp32",
    "weights": "fp32",
    "optimizer_state": "fp32",
    "saves_optimizer": True,
}
"""The lab's usual settings, scaled to a short run."""


SLOW: Mapping[str, Any] = {"steps": LONG, "decay_end": LONG, "warmup_steps": LONG // 10}

RUNS_ON: Mapping[str, Any] = {"schedule": "linear", "holds_after_decay": False}
"""A decay whose formula continues after its end, as torchtitan's does."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault that a rule must find, and what the run needs to show it."""

    rule: str
    won: int
    """Seeds in which the fix was better, when all trials were last run (2026-11-15)."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    bad_batches: bool = False


TRIALS = (
    Trial("TT002", 8, {"clip_norm": 0.0, "beta2": 0.999}, bad_batches=True),
    Trial("TT004", 10, {"epsilon": 1e-2}),
    Trial("TT006", 8, {"weight_decay": 10.0, **SLOW}),
    Trial("TT007", 7, {"weight_decay": 0.0, **SLOW}),
    Trial("TT010", 10, {"optimizer": "adam", "decoupled_decay": False, **SLOW}),
    Trial("TT012", 10, {"lr": 0.3, "final_lr": 0.03}),
    Trial("TT020", 0, {"cycles": 1.0}),
    Trial("TT021", 10, {"final_lr": 3e-2}),
    Trial("TT023", 0, {"warmup_steps": STEPS}),
    Trial("TT025", 1, {"warmup_steps": 0, "lr": 1e-2, "final_lr": 1e-3}),
    Trial("TT029", 10, {"decay_end": STEPS // 2, "final_lr": 0.0}),
    Trial("TT030", 10, {"decay_end": STEPS // 2, "final_lr": 0.0, **RUNS_ON}),
    Trial("TT031", 0, {"resume_step": STEPS // 2, "schedule_step": 0}),
    Trial("TT032", 0, {"schedule": "constant"}),
    Trial("TT040", 4, {"compute": "fp16", "loss_scaling": "none"}),
    Trial("TT044", 10, {"weights": "bf16"}),
    Trial("TT045", 7, {"optimizer_state": "bf16", "beta2": 0.999}),
    Trial("TT060", 10, {"norm": "post", "layers": 12}),
    Trial("TT062", 10, {"init_std": 1.0}),
    Trial("TT087", 3, {"saves_optimizer": False, "resume_step": STEPS // 2}),
)


def fault_and_fix(trial: Trial) -> tuple[TrainingPlan, TrainingPlan]:
    broken = read_config({**BASE, **trial.changes}).plan
    fault = PLAN_RULES[trial.rule].run(broken)
    if not isinstance(fault, Fault):
        raise AssertionError(f"{trial.rule} does not find the fault of its trial")
    return broken, replace(broken, **fault.fix)


def train(plan: TrainingPlan, seed: int, corpus: TokenCorpus, bad_batches: bool) -> float:
    """The held-out loss after the last step."""
    model, optimizer = build(plan, seed)
    data = WindowDataset(corpus, data_config(plan, seed))
    random = torch.Generator().manual_seed(seed)
    curve = plan.curve
    assert curve is not None
    assert plan.steps
    for step in range(plan.steps):
        if step == plan.resume_step and not plan.saves_optimizer:
            optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = curve.at(schedule_step(plan, step))
        batch = data[step]
        tokens, targets = batch.tokens, batch.targets
        if bad_batches and step in BAD_STEPS:
            tokens, targets = rare_batch(corpus, batch, random)
        with autocast(plan):
            loss = model(tokens, targets).loss
        loss.backward()
        if plan.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if plan.optimizer_state is Precision.BF16:
            round_second_moments(optimizer)
    return held_out_loss(model, plan, corpus)


def rare_batch(corpus: TokenCorpus, like: Batch, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of the same shape, drawn from the corpus's rare tokens."""
    counts = corpus.counts()
    rare = torch.as_tensor(np.flatnonzero((counts > 0) & (counts < RARE)))
    rows, length = like.tokens.shape
    drawn = rare[torch.randint(len(rare), (rows, length + 1), generator=random)]
    return drawn[:, :-1], drawn[:, 1:]


def build(plan: TrainingPlan, seed: int) -> tuple[Gpt, torch.optim.Optimizer]:
    """The model and the optimizer of a plan."""
    known = (plan.lr, plan.beta1, plan.beta2, plan.epsilon, plan.weight_decay, plan.layers)
    lr, beta1, beta2, epsilon, decay, layers = (value or 0 for value in known)
    config = replace(
        SIZE, layers=int(layers), post_norm=plan.norm is NormPlace.POST, init_std=plan.init_std
    )
    model = Gpt(config, generator=torch.Generator().manual_seed(seed))
    if plan.weights is Precision.BF16:
        model.to(torch.bfloat16)
    if plan.decoupled_decay:
        settings = OptimizerConfig(
            lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=decay
        )
        return model, make_optimizer(model, settings)
    groups = parameter_groups(model, lr=lr, weight_decay=decay)
    return model, torch.optim.Adam(groups, lr=lr, betas=(beta1, beta2), eps=epsilon)


def schedule_step(plan: TrainingPlan, step: int) -> int:
    if plan.resume_step is None or plan.schedule_step is None or step < plan.resume_step:
        return step
    return step - plan.resume_step + plan.schedule_step


def autocast(plan: TrainingPlan) -> AbstractContextManager[Any]:
    types = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}
    kind = types.get(plan.compute) if plan.compute else None
    return nullcontext() if kind is None else torch.autocast("cpu", kind)


@torch.no_grad()
def round_second_moments(optimizer: torch.optim.Optimizer) -> None:
    """Round them as an optimizer that stores them in bf16 would."""
    for state in optimizer.state.values():
        moment: Tensor = state["exp_avg_sq"]
        moment.copy_(moment.bfloat16())


def data_config(plan: TrainingPlan, seed: int) -> DataConfig:
    assert plan.batch_size
    assert plan.seq_len
    return DataConfig(batch_size=plan.batch_size, length=plan.seq_len, seed=seed)


@torch.no_grad()
def held_out_loss(model: Gpt, plan: TrainingPlan, corpus: TokenCorpus) -> float:
    """The loss on 256 windows of held-out text, the same for every run."""
    config = replace(data_config(plan, 0), batch_size=64)
    data = WindowDataset(corpus, config, split=CorpusSplit.HELD_OUT)
    batches: list[Batch] = [data[position] for position in range(4)]
    losses = [model(batch.tokens, batch.targets).cross_entropy.item() for batch in batches]
    return statistics.fmean(losses)


def compare(
    trial: Trial, corpus: TokenCorpus, done: dict[tuple[TrainingPlan, int, bool], float]
) -> tuple[str, bool]:
    """Return how a trial went, in a few words, and whether the rule is shown."""
    sides: list[list[float]] = []
    for plan in fault_and_fix(trial):
        for seed in range(SEEDS):
            key = (plan, seed, trial.bad_batches)
            if key not in done:  # most fixes lead to the same plan
                done[key] = train(plan, seed, corpus, trial.bad_batches)
        sides.append([done[plan, seed, trial.bad_batches] for seed in range(SEEDS)])
    broken, fixed = sides
    better = sum(not good >= bad for bad, good in zip(broken, fixed, strict=True))
    print(trial.rule, mean_loss(broken), mean_loss(fixed), better, file=sys.stderr, flush=True)
    return f"{trial.rule} ({better} of {SEEDS}, {interval(broken, fixed)})", better >= MIN_BETTER


def mean_loss(losses: list[float]) -> str:
    finite = [loss for loss in losses if math.isfinite(loss)]
    lost = len(losses) - len(finite)
    mean = f"{statistics.fmean(finite):.3f}" if finite else "none finite"
    return f"{mean} ({lost} not finite)" if lost and finite else mean


def interval(broken: list[float], fixed: list[float]) -> str:
    pairs = [bad - good for bad, good in zip(broken, fixed, strict=True)]
    if not all(math.isfinite(pair) for pair in pairs):
        return "not finite"
    mean, half = statistics.fmean(pairs), T_975 * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def main() -> None:
    """Train both sides of every trial, and print how they ended."""
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    corpus = prepare_corpus(CorpusConfig(vocab_size=SIZE.vocab_size))
    done: dict[tuple[TrainingPlan, int, bool], float] = {}
    found = [compare(trial, corpus, done) for trial in TRIALS if not wanted or trial.rule in wanted]
    shown = [text for text, is_shown in found if is_shown]
    others = [text for text, is_shown in found if not is_shown]
    body = (
        f"Held-out loss of the lab's 0.15M model after {STEPS} steps of 8 x 32 tokens, with a "
        f"fault and with its rule's fix, over the same {SEEDS} seeds. In parentheses: seeds in "
        "which the fix is better, and the mean difference of the pairs with its 95 % interval. "
        f"Shown: better in at least {MIN_BETTER} seeds. The trial of TT002 has 5 batches of rare "
        "tokens; those of TT031 and TT087 resume in the middle; those of TT006, TT007 and TT010 "
        f"take {LONG} steps, because decay acts slowly.\n\n"
        f"Shown: {'; '.join(shown)}.\n\nNot shown: {'; '.join(others)}."
    )
    print(body)


if __name__ == "__main__":
    main()
