"""Writers of text logs, with the format strings of each trainer's own source.

None of these trainers runs without a GPU or without its data, so its strings were taken over and
filled here. Where a package could be run, `tests/readers/text/fixtures` has what it wrote.
"""

import json
import math
from dataclasses import dataclass, field

from tests.kit.text_logs.story import Ink, Moment, Writer, story

from trimtab.core.signals import Quality

TOTAL = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One way in which one trainer prints."""

    name: str
    format: str
    write: Writer
    stride: int = 1
    qualities: dict[str, Quality] = field(default_factory=dict)

    def print(self, seed: int = 0, *, evaluated: bool = True) -> tuple[list[str], Ink]:
        """The log of the story, one part a moment, and what was put into it."""
        ink = Ink()
        moments = story(self.stride, seed, evaluated=evaluated)
        return [self.write(ink, moment) for moment in moments], ink


def megatron(ink: Ink, moment: Moment) -> str:
    """training_log() and evaluate_and_print_results() of Megatron-LM main, August 2026."""
    line = " [2026-08-22 10:00:00.000000]"
    line += " iteration {}/{:8d} |".format(ink.record(moment.step, "8d"), TOTAL)
    line += f" consumed samples: {moment.step * 512:12d} |"
    line += " elapsed time per iteration (ms): {} |".format(
        ink("step_seconds", moment.seconds * 1000, ".1f", 0.001)
    )
    line += f" throughput per GPU (TFLOP/s/GPU): {412.3:.1f} |"
    line += f" learning rate: {ink('lr', moment.lr, '.6E')} |"
    line += f" global batch size: {512:5d} |"
    if moment.loss >= 0.0:
        line += f" lm loss: {ink('loss', moment.loss, '.6E')} |"
    else:
        ink.truth("loss", math.nan)
    line += f" load_balancing_loss: {ink('balancing_loss', 1.0123456, '.6E')} |"
    line += f" loss scale: {ink('loss_scale', moment.loss_scale, '.1f')} |"
    line += f" grad norm: {ink('grad_norm', moment.grad_norm, '.3f')} |"
    line += f" num zeros: {12345} |"
    line += f" params norm: {ink('param_norm', 123.4567, '.3f')} |"
    line += f" number of skipped iterations: {0:3d} |"
    line += f" number of nan iterations: {0:3d} |\n"
    line += "(min, max) time across ranks (ms):\n    forward-backward ....: (401.12, 412.23)\n"
    if moment.eval_loss is not None:
        bar = "-" * 80
        step = ink.record(moment.step)
        line += f"{bar}\n validation loss at iteration {step} | "
        line += f"lm loss value: {ink('eval_loss', moment.eval_loss, '.6E')} | "
        line += f"lm loss PPL: {math.exp(moment.eval_loss):.6E} | \n{bar}\n"
    return line


def nemo_printer(ink: Ink, moment: Moment) -> str:
    """ProgressPrinter of NeMo 2."""
    line = f"Training epoch 0, iteration {ink.record(moment.step)}/{TOTAL}"
    line += f" | lr: {ink('lr', moment.lr, '.4')} | global_batch_size: 512"
    line += f" | global_step: {moment.step}"
    line += f" | reduced_train_loss: {ink('loss', moment.loss, '.4')}"
    line += f" | train_step_timing in s: {ink('step_seconds', moment.seconds, '.4')}"
    return f"{line} | consumed_samples: {moment.step * 512}\n"


def automodel(ink: Ink, moment: Moment) -> str:
    """log_train_metrics() and log_val_metrics() of NeMo Automodel 0.7.0."""
    line = "2026-11-15 10:00:00 | INFO | nemo_automodel.recipes.llm.train_ft | "
    line += f"step {ink.record(moment.step)} | epoch 0 | loss {ink('loss', moment.loss, '.4f')}"
    line += f" | grad_norm {ink('grad_norm', moment.grad_norm, '.4f')}"
    line += f" | lr {ink('lr', moment.lr, '.2e')} | mem {17.31:.2f} GiB"
    line += f" | tps {ink('tokens_per_second', moment.tokens_per_second, '.2f')}"
    line += f"({moment.tokens_per_second / 8:.2f}/gpu) | num_label_tokens {4096}\n"
    if moment.eval_loss is not None:
        line += f'[val] name "default" | step {ink.record(moment.step)} | epoch 0'
        line += f" | loss {ink('eval_loss', moment.eval_loss, '.4f')}"
        line += f" | lr {moment.lr:.2e} | num_label_tokens 512\n"
    return line


def torchtitan(ink: Ink, moment: Moment) -> str:
    """MetricsProcessor.log() of torchtitan 0.3.0, with its colours."""
    line = "[titan] 2026-11-15 10:00:00,000 - root - INFO - "
    line += f"\033[31mstep: {ink.record(moment.step, '2')}  "
    line += f"\033[32mloss: {ink('loss', moment.loss, '8.5f')}  "
    line += f"\033[38;2;180;60;0mgrad_norm: {ink('grad_norm', moment.grad_norm, '7.4f')}  "
    line += f"\033[38;2;54;234;195mmemory: {42.1:5.2f}GiB({40 + moment.seconds:.2f}%)  "
    tps = round(moment.tokens_per_second / 100)
    line += f"\033[34mtps: {ink('tokens_per_second', tps, ',')}  "
    line += f"\033[36mtflops: {1318.66:,.2f}  \033[35mmfu: {32.22:.2f}%\033[39m\n"
    if moment.eval_loss is not None:
        line += "[titan] 2026-11-15 10:00:01,000 - root - INFO - "
        line += f"\033[33mvalidate step: {ink.record(moment.step, '2')}  "
        line += f"\033[32mloss: {ink('eval_loss', moment.eval_loss, '7.4f')}  "
        line += f"\033[38;2;54;234;195mmemory: {42.1:5.2f}GiB({53.1:.2f}%)  "
        line += f"\033[34mtps: {round(1234.5):,}\033[39m\n"
    return line


def nanochat(ink: Ink, moment: Moment) -> str:
    """The loop of scripts/base_train.py."""
    line = ""
    if moment.eval_loss is not None:
        line = f"Step {moment.step:05d} | Validation bpb: {moment.eval_loss:.6f}\n"
    line += f"step {ink.record(moment.step, '05d')}/{TOTAL:05d} ({moment.step / 50:.2f}%)"
    line += f" | loss: {ink('loss', moment.loss, '.6f')} | lrm: {ink('lr', 1.0, '.2f')}"
    line += f" | dt: {ink('step_seconds', moment.seconds * 1000, '.2f', 0.001)}ms"
    rate = int(moment.tokens_per_second)
    line += f" | tok/sec: {ink('tokens_per_second', rate, ',')} | bf16_mfu: {48.27:.2f}"
    return (
        f"{line} | epoch: 1 pq: {3} rg: {moment.step} | total time: {1.5:.2f}m | eta: {7.1:.1f}m\n"
    )


def nanogpt(ink: Ink, moment: Moment) -> str:
    """The loop of nanoGPT's train.py."""
    line = ""
    if moment.eval_loss is not None:
        line = f"step {ink.record(moment.step)}: train loss {moment.eval_loss - 0.1:.4f}, "
        line += f"val loss {ink('eval_loss', moment.eval_loss, '.4f')}\n"
        line += "saving checkpoint to out\n"
    line += f"iter {ink.record(moment.step)}: loss {ink('loss', moment.loss, '.4f')}, "
    line += f"time {ink('step_seconds', moment.seconds * 1000, '.2f', 0.001)}ms, mfu {-100:.2f}%\n"
    return line


def build_nanogpt(ink: Ink, moment: Moment) -> str:
    """The loop of build-nanogpt's train_gpt2.py."""
    line = f"step {ink.record(moment.step, '5d')} | loss: {ink('loss', moment.loss, '.6f')}"
    line += (
        f" | lr {ink('lr', moment.lr, '.4e')} | norm: {ink('grad_norm', moment.grad_norm, '.4f')}"
    )
    line += f" | dt: {ink('step_seconds', moment.seconds * 1000, '.2f', 0.001)}ms"
    return f"{line} | tok/sec: {ink('tokens_per_second', moment.tokens_per_second, '.2f')}\n"


def llmc(ink: Ink, moment: Moment) -> str:
    """The loop of llm.c's train_gpt2.cu, as C prints it."""
    line = ""
    if moment.eval_loss is not None:
        ink.record(int(ink.rows[-1]["step"]))  # without a step, it is that of the record above
        line = f"val loss {ink('eval_loss', moment.eval_loss, 'f')}\n"
    step = ink.record(moment.step, "4d")
    line += f"step {step}/{TOTAL} | loss {ink('loss', moment.loss, '7.6f')} ({0.12:+.2f}z)"
    line += f"| norm {ink('grad_norm', moment.grad_norm, '6.4f')} ({math.nan:+.2f}z)"
    line += f"| lr {ink('lr', moment.lr, '.2e')}"
    line += (
        f" | {ink('step_seconds', moment.seconds * 1000, '.2f', 0.001)} ms | {48.2:.1f}% bf16 MFU"
    )
    return f"{line} | {ink('tokens_per_second', moment.tokens_per_second, '.0f')} tok/s\n"


def llmc_python(ink: Ink, moment: Moment) -> str:
    """The loop of llm.c's train_gpt2.py."""
    line = f"step {ink.record(moment.step, '4d')}/{TOTAL} | train loss "
    line += f"{ink('loss', moment.loss, '.6f')} | norm {ink('grad_norm', moment.grad_norm, '.4f')}"
    line += f" | lr {ink('lr', moment.lr, '.2e')}"
    line += f" | ({ink('step_seconds', moment.seconds * 1000, '.2f', 0.001)} ms"
    return f"{line} | {ink('tokens_per_second', moment.tokens_per_second, '.0f')} tok/s)\n"


def llmc_main_log(ink: Ink, moment: Moment) -> str:
    """llmc/logger.h."""
    line = ""
    if moment.eval_loss is not None:
        step = ink.record(moment.step)
        line = f"s:{step} tel:{ink('eval_loss', moment.eval_loss, '.4f')}\n"
    line += f"s:{ink.record(moment.step)} trl:{ink('loss', moment.loss, '.4f')}"
    line += f" lr:{ink('lr', moment.lr, '.6f')} norm:{ink('grad_norm', moment.grad_norm, '.2f')}"
    return f"{line}\n"


def modded_nanogpt(ink: Ink, moment: Moment) -> str:
    """The loop of modded-nanogpt's train_gpt.py."""
    line = ""
    if moment.eval_loss is not None:
        line = f"step:{ink.record(moment.step)}/{TOTAL} "
        line += f"val_loss:{ink('eval_loss', moment.eval_loss, '.4f')} "
        line += f"train_time:{moment.step * 400:.0f}ms step_avg:{400:.2f}ms\n"
    line += f"step:{ink.record(moment.step)}/{TOTAL} train_loss:{ink('loss', moment.loss, '.4f')} "
    return f"{line}train_time:{moment.step * 400:.0f}ms step_avg:{math.nan:.2f}ms\n"


def fairseq_simple(ink: Ink, moment: Moment) -> str:
    """SimpleProgressBar of fairseq 0.12.2, with the statistics of a translation."""
    step = ink.record(moment.step)
    nll = moment.loss - 0.5
    perplexity = 2**nll if math.isfinite(nll) else nll
    line = "2026-11-15 10:00:00 | INFO | train_inner | "
    line += f"epoch 001:  {moment.step:5d} / {TOTAL:d} "
    line += f"loss={ink('loss', moment.loss, '.3f', math.log(2))}, "
    line += f"nll_loss={ink('nll_loss', nll, '.3f', math.log(2))}, ppl={perplexity:.2f}, "
    line += f"wps={ink('tokens_per_second', moment.tokens_per_second, '.1f')}, ups=2.5, "
    line += f"wpb=3941.5, bsz=128.4, num_updates={step}, lr={ink('lr', moment.lr, 'g')}, "
    line += f"gnorm={ink('grad_norm', moment.grad_norm, '.3f')}, "
    line += f"loss_scale={ink('loss_scale', moment.loss_scale, 'g')}, train_wall=39, wall=96\n"
    ink.truth("step_seconds", 1 / 2.5)
    if moment.eval_loss is not None:
        step = ink.record(moment.step)
        loss = ink("eval_loss", moment.eval_loss, ".3f", math.log(2))
        line += "2026-11-15 10:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | "
        line += f"loss {loss} | ppl {2**moment.eval_loss:.2f} | num_updates {step}\n"
        line += f"2026-11-15 10:00:02 | INFO | train | epoch 001 | loss 9.9 | num_updates {step}\n"
    return line


def deepspeed(ink: Ink, moment: Moment) -> str:
    """PipelineEngine.train_batch() of DeepSpeed 0.19.8, and the lines of its engine."""
    step = ink.record(moment.step)
    line = "[2026-11-15 10:00:00,000] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] "
    line += "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
    ink.truth("n_overflow", 1)
    ink.truth("loss_scale", 32768)
    line += "[2026-11-15 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] "
    line += f"step={step}, skipped={2}, lr=[{ink('lr', moment.lr, '')}], mom=[(0.9, 0.95)]\n"
    line += f"steps: {step} loss: {ink('loss', moment.loss, '0.4f')} "
    line += (
        f"iter time (s): {ink('step_seconds', moment.seconds, '0.3f')} samples/sec: {39.4:0.3f}\n"
    )
    return line


def deepspeed_chat(ink: Ink, moment: Moment) -> str:
    """step3_rlhf_finetuning/main.py of DeepSpeed-Chat."""
    line = f"Epoch: 0 | Step: {ink.record(moment.step)} | PPO Epoch: 1"
    line += f" | Actor Loss: {ink('loss', moment.loss, '')}"
    line += f" | Critic Loss: {moment.grad_norm} | Unsupervised Loss: 0.0\n"
    line += "End-to-End => Latency: 3.81s, TFLOPs: 12.1, Samples/sec: 16.78, Time/seq 0.06s\n"
    return f"{line}Average reward score: {4.5583} | EMA reward score: 1.0\n"


def mlperf(ink: Ink, moment: Moment) -> str:
    """mllog.event() of mlperf_logging, called as NVIDIA's callbacks do; steps are samples."""

    def event(key: str, value: object, **metadata: object) -> str:
        entry = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key}
        metadata = {"file": "callbacks.py", "lineno": 312, **metadata}
        return f" 0: :::MLLOG {json.dumps({**entry, 'value': value, 'metadata': metadata})}\n"

    ink.record(moment.step)
    line = event("global_batch_size", 64) if len(ink.rows) == 1 else ""
    stats = {"train_step_time": moment.seconds, "reduced_train_loss": moment.loss}
    line += event("tracked_stats", stats, step=64.0 * moment.step)
    ink.truth("loss", moment.loss)
    ink.truth("step_seconds", moment.seconds)
    if moment.eval_loss is not None:
        line += event("tracked_stats", {"throughput": 86.4, "max_memory_usage": 71.2}, step=64)
        line += event("eval_accuracy", moment.eval_loss, samples_count=64 * moment.step)
        ink.record(moment.step)
        ink.truth("eval_accuracy", moment.eval_loss)
    return line


_MEANS = {"loss": Quality.WINDOW_MEAN, "step_seconds": Quality.WINDOW_MEAN}

SAMPLES = [
    Sample(
        name="Megatron-LM",
        format="text",
        write=megatron,
        stride=10,
        qualities=_MEANS | {"loss": Quality.INFERRED},
    ),
    Sample(name="NeMo 2", format="text", write=nemo_printer, stride=100, qualities=_MEANS),
    Sample(name="NeMo Automodel", format="text", write=automodel),
    Sample(name="torchtitan", format="text", write=torchtitan, stride=10),
    Sample(
        name="nanochat",
        format="text",
        write=nanochat,
        qualities={"loss": Quality.SMOOTHED},
    ),
    Sample(name="nanoGPT", format="text", write=nanogpt, stride=10),
    Sample(name="build-nanogpt", format="text", write=build_nanogpt),
    Sample(
        name="llm.c",
        format="text",
        write=llmc,
        qualities={"tokens_per_second": Quality.SMOOTHED},
    ),
    Sample(
        name="llm.c in Python",
        format="text",
        write=llmc_python,
        qualities={"tokens_per_second": Quality.SMOOTHED},
    ),
    Sample(name="llm.c main.log", format="text", write=llmc_main_log),
    Sample(name="modded-nanogpt", format="text", write=modded_nanogpt),
    Sample(
        name="fairseq",
        format="text",
        write=fairseq_simple,
        stride=100,
        qualities=_MEANS
        | {"grad_norm": Quality.WINDOW_MEAN, "tokens_per_second": Quality.WINDOW_MEAN},
    ),
    Sample(
        name="DeepSpeed",
        format="text",
        write=deepspeed,
        stride=10,
        qualities={"step_seconds": Quality.WINDOW_MEAN},
    ),
    Sample(name="DeepSpeed-Chat", format="text", write=deepspeed_chat),
    Sample(name="MLPerf", format="mlperf", write=mlperf),
]
"""OLMo is not among them: its writer could be run."""
