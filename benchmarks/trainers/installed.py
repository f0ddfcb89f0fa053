"""The trainers of this environment, and their versions."""

import importlib.metadata
import importlib.util
import itertools
from dataclasses import dataclass

from benchmarks.trainers.compare import RunPlan, on_ranks
from benchmarks.trainers.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One that is installed."""

    name: str
    package: str
    beside: str = ""
    """A package whose version matters too."""
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")

    @property
    def is_installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.package) is not None

    @property
    def version(self) -> str:
        """Its package and version."""
        names = [name for name in (self.package, self.beside) if name]
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)

    def settings(self) -> list[Setting]:
        """Every setting that it has."""
        found = itertools.product(self.precisions, (1, 4), (1, 2))
        return [Setting(precision=p, accumulate=a, ranks=r) for p, a, r in found]

    def run(self) -> RunPlan:
        """How to train with it; imports its package."""
        if self.name == "torchtitan":
            from benchmarks.trainers import torchtitan

            return torchtitan.train
        if self.name == "Lightning":
            from benchmarks.trainers import lightning

            return on_ranks(lightning.train)
        if self.name == "Accelerate":
            from benchmarks.trainers import accelerate

            return on_ranks(accelerate.train)
        from benchmarks.trainers import hf

        return on_ranks(hf.train_sft if self.name == "SFTTrainer" else hf.train_trainer)


TRAINERS = (
    Trainer(name="Trainer", package="transformers", beside="accelerate"),
    Trainer(name="SFTTrainer", package="trl", beside="transformers"),
    Trainer(name="Accelerate", package="accelerate"),
    Trainer(name="Lightning", package="lightning"),
    Trainer(name="torchtitan", package="torchtitan", precisions=("fp32", "bf16")),
)
