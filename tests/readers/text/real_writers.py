"""Makes the logs in `fixtures/` with the code of the trainers themselves.

Run by hand, where these packages lie unpacked (pip download --no-deps, then unzip or tar) in one
folder, each in a folder of its own:

    megatron_bridge/   megatron_bridge 0.3.1       ai2_olmo_core/     ai2_olmo_core 3.0.0
    nemo2/             nemo_toolkit 2.5.0          fairseq-0.12.2/    fairseq 0.12.2
    nemo_automodel/    nemo_automodel 0.7.0        deepspeed-0.19.8/  deepspeed 0.19.8
    torchtitan/        torchtitan 0.3.0            mlperf_logging/    mlperf_logging 4.1.68

    python -m tests.readers.text.real_writers FOLDER

nemo_toolkit is the one that does not lie under its own name: its second series is what writes such
lines, so its folder is `nemo2`.

What can be imported is imported; of what needs a GPU, the one function that prints is taken out of
its file and called alone. Beside each log goes what the writer was given.
"""

import ast
import importlib
import io
import json
import math
import os
import sys
import tempfile
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.kit.text_logs.story import Moment, story

FIXTURES = Path(__file__).parent / "fixtures"
TOTAL = 5000

Rows = list[dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A log as its trainer wrote it, and what the trainer was given."""

    name: str
    writer: str
    text: str
    rows: Rows


def main(folder: Path) -> None:
    """Make all fixtures."""
    # DeepSpeed looks for fairseq, so it comes before it.
    for make in (bridge, nemo, automodel, torchtitan, olmo, deepspeed, fairseq, mlperf):
        made = make(folder)
        # A crash: the last line breaks off, two characters before its end.
        last = made.text.splitlines()[-1]
        (FIXTURES / f"{made.name}.log").write_text(made.text + last[:-2])
        facts = {"writer": made.writer, "rows": made.rows}
        (FIXTURES / f"{made.name}.json").write_text(json.dumps(facts, indent=1))
        print(f"{made.name}: {len(made.rows)} records by {made.writer}")  # noqa: T201


def bridge(folder: Path) -> Made:
    """Megatron-Bridge: ten iterations a line, of which some are skipped."""
    torch = importlib.import_module("torch")

    def tensor(values: list[float], **_: object) -> Any:
        return torch.tensor(values)

    path = folder / "megatron_bridge/megatron/bridge/training/utils/train_utils.py"
    log = _take(
        path,
        "training_log",
        datetime=datetime,
        torch=MagicMock(tensor=tensor),
        print_rank_last=print,
        get_num_microbatches=lambda: 8,
        reduce_max_stat_across_model_parallel_group=lambda value, **_: value,
        num_floating_point_operations=lambda *_: 1e15,
        get_world_size_safe=lambda: 8,
    )
    config, state = MagicMock(), MagicMock(tensorboard_logger=None, energy_monitor=None)
    config.logger.log_interval, config.logger.timing_log_level = 10, 0
    config.logger.log_timers_to_tensorboard = config.profiling = False
    config.model.num_moe_experts = config.model.mtp_num_layers = None
    config.train.micro_batch_size, config.data_parallel_size = 2, 32
    config.train.train_iters, state.train_state.skipped_train_samples = TOTAL, 0
    totals: dict[str, Any] = {}
    rows: Rows = []
    with _printed() as text:
        for number, moment in enumerate(story(stride=10)):
            skipped, lost = number in (5, 6), number == 6
            loss = math.nan if lost else moment.loss
            state.timers.return_value.elapsed.return_value = moment.seconds * 10
            for step in range(moment.step - 9, moment.step + 1):
                state.train_state.step = step
                state.train_state.consumed_train_samples = step * 512
                log(
                    loss_dict={"lm loss": torch.tensor(loss)},
                    total_loss_dict=totals,
                    learning_rate=moment.lr,
                    decoupled_learning_rate=None,
                    loss_scale=moment.loss_scale,
                    report_memory_flag=False,
                    skipped_iter=int(skipped),
                    grad_norm=None if skipped else moment.grad_norm,
                    params_norm=123.4567,
                    num_zeros_in_grad=None,
                    config=config,
                    global_state=state,
                    history_wct=[],
                    model=[],
                )
            row = _row(moment, "lr", "loss_scale", seconds="step_seconds")
            row |= {} if skipped else {"grad_norm": moment.grad_norm}
            rows.append(row | ({} if skipped and not lost else {"loss": loss}))
    return Made(name="megatron", writer="Megatron-Bridge 0.3.1", text=text(), rows=rows)


def nemo(folder: Path) -> Made:
    """The progress printer of NeMo: means over ten steps."""
    path = folder / "nemo2/nemo/lightning/pytorch/callbacks/progress_printer.py"
    given = {"ProgressBar": object, "override": lambda method: method, "defaultdict": defaultdict}
    printer = _take(path, "ProgressPrinter", **given)(10)
    printer.total = TOTAL
    rows: Rows = []
    with _printed() as text:
        for moment in story(stride=10):
            metrics = {
                "lr": moment.lr,
                "global_batch_size": 512.0,
                "global_step": float(moment.step),
                "reduced_train_loss": moment.loss,
                "train_step_timing in s": moment.seconds,
            }
            printer.get_metrics = lambda *_, metrics=metrics: metrics
            trainer = MagicMock(current_epoch=0)
            trainer.strategy.timers = None
            for step in range(moment.step - 9, moment.step + 1):
                trainer.strategy.current_epoch_step = step
                printer.on_train_batch_end(trainer, None)
            rows.append(_row(moment, "loss", "lr", seconds="step_seconds"))
    return Made(name="nemo", writer="NeMo 2.5.0, ProgressPrinter", text=text(), rows=rows)


def automodel(folder: Path) -> Made:
    """The recipe of NeMo Automodel."""
    path = folder / "nemo_automodel/nemo_automodel/recipes/llm/train_ft.py"
    logging = MagicMock(info=print)
    recipe = "TrainFinetuneRecipeForNextTokenPrediction"
    train = _take(path, f"{recipe}.log_train_metrics", logging=logging, _HAS_MLFLOW=False)
    rows: Rows = []
    with _printed() as text:
        for moment in story():
            data = MagicMock(step=moment.step, epoch=0)
            data.metrics = {
                "loss": moment.loss,
                "grad_norm": moment.grad_norm,
                "lr": moment.lr,
                "mem": 17.31,
                "tps": moment.tokens_per_second,
                "tps_per_gpu": moment.tokens_per_second / 8,
                "num_label_tokens": 4096,
            }
            train(MagicMock(), data)
            rows.append(_row(moment, "loss", "grad_norm", "lr", "tokens_per_second"))
    return Made(name="automodel", writer="NeMo Automodel 0.7.0", text=text(), rows=rows)


def torchtitan(folder: Path) -> Made:
    """The metrics processor of torchtitan, with colours and its own logger."""
    sys.path.insert(0, str(folder / "torchtitan"))
    metrics: Any = importlib.import_module("torchtitan.components.metrics")
    logging: Any = importlib.import_module("torchtitan.tools.logging")
    colours: Any = importlib.import_module("torchtitan.tools.utils")
    memory = metrics.DeviceMemStats(40.0, 50.0, 42.1, 53.1, 0, 0)
    rows: Rows = []
    with _printed() as text:
        logging.init_logger()
        for moment in story(stride=10):
            processor = MagicMock(color=colours.Color(), has_quantization=False)
            processor.num_flops_per_token, processor.gpu_peak_flops = 1e9, 1e15
            processor.ntokens_since_last_log = 4_096_000
            processor.time_last_log = time.perf_counter() - moment.seconds
            processor.parallel_dims.non_data_parallel_size = 1
            processor.config.log_freq, processor.data_loading_times = 10, [0.1]
            processor.device_memory_monitor.get_peak_stats.return_value = memory
            metrics.MetricsProcessor.log(
                processor, moment.step, moment.loss, moment.loss, moment.grad_norm
            )
            rows.append(_row(moment, "loss", "grad_norm"))
            if moment.eval_loss is not None:
                processor.time_last_log = time.perf_counter() - moment.seconds
                metrics.MetricsProcessor.log_validation(processor, moment.eval_loss, moment.step)
                rows.append(_row(moment, "eval_loss"))
    return Made(name="torchtitan", writer="torchtitan 0.3.0", text=text(), rows=rows)


def olmo(folder: Path) -> Made:
    """The console logger of OLMo-core: metrics at every second step."""
    sys.path.insert(0, str(folder / "ai2_olmo_core"))
    console: Any = importlib.import_module("olmo_core.train.callbacks.console_logger")
    utils: Any = importlib.import_module("olmo_core.utils")
    rows: Rows = []
    with _printed() as text:
        utils.setup_logging(force=True)
        utils.log_extra_field("hostname", "host")
        importlib.import_module("logging").getLogger().setLevel("INFO")
        callback = console.ConsoleLoggerCallback(metrics_log_interval=2)
        trainer = MagicMock(max_steps=TOTAL, epoch=1, hard_stop=None)
        trainer.training_progress.time_remaining = None
        callback.trainer = trainer
        for moment in story():
            trainer.global_step = moment.step
            callback.post_step()
            metrics = {
                "train/CE loss": moment.loss,
                "train/PPL": min(math.exp(moment.loss), 1e12),
                "optim/total grad norm": moment.grad_norm,
                "optim/LR (group 0)": moment.lr,
                "throughput/device/TPS": moment.tokens_per_second,
                "throughput/total tokens": 4096.0 * 1024 * 1024 * moment.step,
            }
            callback.log_metrics(moment.step, metrics)
            if moment.step == 1 or moment.step % 2 == 0:
                rows.append(_row(moment, "loss", "grad_norm", "lr", "tokens_per_second"))
    return Made(name="olmo", writer="OLMo-core 3.0.0", text=text(), rows=rows)


def fairseq(folder: Path) -> Made:
    """The JSON progress bar of fairseq, fed by its own meters; a loss in bits."""
    for name, path in (("fairseq", "fairseq"), ("fairseq.logging", "fairseq/logging")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder / "fairseq-0.12.2" / path)]
        sys.modules[name] = package
    bars: Any = importlib.import_module("fairseq.logging.progress_bar")
    metrics: Any = importlib.import_module("fairseq.logging.metrics")
    logging: Any = importlib.import_module("logging")
    rows: Rows = []
    with _printed() as text:
        form = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"
        logging.basicConfig(format=form, level="INFO", stream=sys.stdout, force=True)
        bar = bars.JsonProgressBar(range(TOTAL), epoch=1, log_interval=100)
        bar.i, bar.size = 0, TOTAL
        for moment in story(stride=100):
            bits = moment.loss / math.log(2)
            with metrics.aggregate(new_root=True) as meters:
                metrics.log_scalar("loss", bits, 1, round=3)
                perplexity = 2**bits if math.isfinite(bits) else bits
                metrics.log_scalar("ppl", perplexity, 1, round=2)
                metrics.log_scalar("wps", moment.tokens_per_second, 1, round=1)
                metrics.log_scalar("num_updates", moment.step, 0)
                metrics.log_scalar("lr", moment.lr, 0)
                metrics.log_scalar("gnorm", moment.grad_norm, 1, round=3)
                metrics.log_scalar("loss_scale", moment.loss_scale, 1, round=4)
            bar.i = moment.step
            stats = {name: meters.get_smoothed_value(name) for name in meters}
            bar.log(stats, tag="train_inner", step=moment.step)
            signals = ("loss", "grad_norm", "lr", "loss_scale", "tokens_per_second")
            rows.append(_row(moment, *signals))
            if moment.eval_loss is not None:
                valid = {"loss": moment.eval_loss / math.log(2), "num_updates": moment.step}
                bar.print(valid, tag="valid", step=moment.step)
                rows.append(_row(moment, "eval_loss"))
    return Made(name="fairseq", writer="fairseq 0.12.2", text=text(), rows=rows)


def deepspeed(folder: Path) -> Made:
    """The pipeline engine of DeepSpeed, training on batches that say what their loss shall be."""
    torch = importlib.import_module("torch")
    sys.path.insert(0, str(folder / "deepspeed-0.19.8"))
    engines: Any = importlib.import_module("deepspeed")
    importlib.import_module("deepspeed.comm.torch")
    # Shared memory between ranks, which would have to be compiled; there is one rank.
    vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None
    rows: Rows = []
    with _printed() as text, tempfile.TemporaryDirectory() as temporary:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{temporary}/meeting", rank=0, world_size=1
        )
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        engines.init_distributed(dist_backend="gloo")
        engines.utils.logger.handlers[0].setStream(sys.stdout)
        engines.utils.logger.handlers[0].setLevel("INFO")
        engines.utils.logger.setLevel("INFO")
        model = engines.pipe.PipelineModule(
            [torch.nn.Linear(4, 4)],
            num_stages=1,
            loss_fn=lambda out, wanted: (out * 0 + wanted).mean(),
        )
        engine, *_ = engines.initialize(
            model=model,
            model_parameters=model.parameters(),
            config={
                "train_batch_size": 1,
                "steps_per_print": 1,
                "optimizer": {"type": "SGD", "params": {"lr": 1e-4}},
            },
        )
        scaler = engines.runtime.fp16.loss_scaler.DynamicLossScaler(
            init_scale=2**16,
            scale_window=1000,
            min_scale=1.0,
            delayed_shift=2,
            consecutive_hysteresis=False,
            dtype=torch.half,
        )
        for number, moment in enumerate(story()):
            if number in (3, 4, 9):
                scaler.update_scale(overflow=True)
            engine.global_steps = moment.step - 1
            batch = (torch.zeros(1, 4), torch.full((1, 4), moment.loss))
            engine.train_batch(data_iter=iter([batch]))
            row = _row(moment, "loss") | {"lr": 1e-4}
            if number in (3, 4, 9):
                row |= {"n_overflow": 1}
            rows.append(row)
    return Made(name="deepspeed", writer="DeepSpeed 0.19.8", text=text(), rows=rows)


def mlperf(folder: Path) -> Made:
    """The logger of MLPerf, with steps in samples."""
    sys.path.insert(0, str(folder / "mlperf_logging"))
    mllog: Any = importlib.import_module("mlperf_logging.mllog.mllog")
    rows: Rows = []
    with _printed() as text:
        logger = mllog.MLLogger(root_dir=str(Path(__file__).parents[3]))
        logger.event("submission_benchmark", "llama31_8b")
        logger.event("global_batch_size", 64)
        for moment in story():
            stats = {"train_step_time": moment.seconds, "reduced_train_loss": moment.loss}
            logger.event("tracked_stats", stats, metadata={"step": 64 * moment.step})
            rows.append(_row(moment, "loss", seconds="step_seconds"))
    return Made(name="mlperf", writer="mlperf_logging 4.1.68", text=text(), rows=rows)


def _row(moment: Moment, *signals: str, **renamed: str) -> dict[str, float]:
    names = {name: name for name in ("step", *signals)} | renamed
    return {signal: getattr(moment, name) for name, signal in names.items()}


def _take(path: Path, name: str, **given: object) -> Callable[..., Any]:
    """A function or class out of a file, alone; whatever else it names is a mock."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        [node] = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        body = node.body
    for function in (node for node in ast.walk(node) if isinstance(node, ast.FunctionDef)):
        function.returns = None
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
    code = compile(ast.Module(body=[node], type_ignores=[]), str(path), "exec")
    names = {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}
    builtins = set(dir(importlib.import_module("builtins")))
    space: dict[str, Any] = {found: MagicMock() for found in names - builtins} | given
    exec(code, space)
    return space[node.name]  # type: ignore[no-any-return]


@contextmanager
def _printed() -> Iterator[Callable[[], str]]:
    """Catches what is printed."""
    stream = io.StringIO()
    with redirect_stdout(stream):
        yield stream.getvalue


if __name__ == "__main__":
    main(Path(sys.argv[1]))
