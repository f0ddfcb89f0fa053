"""Trimtab in torchtitan 0.3: docs/integrations/torchtitan.md.

No line of code, one flag:
--override.imports 'trimtab.integrations.torchtitan.watched={"run_dir": "x1", "mode": "protect"}'
"""

from dataclasses import dataclass, field
from typing import Any

from trimtab.core.errors import MissingExtra

try:
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.config.override import derive, override
    from torchtitan.trainer import Trainer
except ModuleNotFoundError as error:
    message = f'it needs torchtitan 0.3 ({error}); run: pip install "trimtab[torchtitan]"'
    if not (error.name or "").startswith("torchtitan"):  # it is there, and cannot be imported
        message = f"torchtitan cannot be imported ({error}); triton comes with a torch for CUDA"
    raise MissingExtra(message) from error

from trimtab.integrations.trainers.adapter import find_caller
from trimtab.integrations.trainers.torchtitan import TitanWatcher
from trimtab.live.guard import Guard

__all__ = ["WatchedMetrics", "watched"]


class WatchedMetrics(MetricsProcessor):  # type: ignore[misc]
    """torchtitan's metrics, built by the Trainer that is to be watched."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        """torchtitan's settings of metrics, and those of the guard."""

        run_dir: str = ""
        """The folder of the run; `trimtab` in the dump folder if it is empty."""
        mode: str = "observe"
        """As for `trimtab.watch`."""
        settings: dict[str, Any] = field(default_factory=dict)
        """Settings of trimtab that are not the defaults, such as {"live.lag_steps": 1}."""

    def __init__(self, config: Config, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        trainer = find_caller(Trainer)
        self._watcher = None
        if trainer is not None:  # else a validator or a generator builds metrics of its own
            self._watcher = TitanWatcher(trainer, config.run_dir, config.mode, config.settings)

    @property
    def guard(self) -> Guard | None:
        """The guard, while the Trainer trains."""
        return None if self._watcher is None else self._watcher.adapter.guard

    def close(self) -> None:
        """The Trainer is done, or has failed."""
        if self._watcher is not None:
            self._watcher.close()
        super().close()


@override(target=MetricsProcessor.Config, description="trimtab watches the run")  # type: ignore[untyped-decorator]
def watched(
    config: MetricsProcessor.Config,
    run_dir: str = "",
    mode: str = "observe",
    settings: dict[str, Any] | None = None,
) -> Any:
    """Replace torchtitan's metrics by metrics that watch their Trainer."""
    return derive(
        config, WatchedMetrics.Config, run_dir=run_dir, mode=mode, settings=settings or {}
    )
