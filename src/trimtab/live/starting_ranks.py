"""StartingRanks: the ranks that a guard starts with, and what they report to each other."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn

from trimtab.core.config import Config, Mode
from trimtab.live.parts import Parts
from trimtab.live.ranks.agreement import RankFacts
from trimtab.live.ranks.rank_group import RankGroup, find_ranks, join_group


class StartingRanks:
    """Finds the other ranks: now if there are any, else at the first update."""

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        mode: Mode,
        quarantined: tuple[int | str, ...],
    ) -> None:
        self._model = model
        self._config = config
        self._quarantined = quarantined
        live = config.live
        self._settings = f"{mode.value} {live.lag_steps} {live.telemetry_every}"
        if mode is Mode.RECOVER:
            recover = config.recover
            self._settings += f" {recover.snapshot_every} {recover.oldest_steps}"
            self._settings += f" {config.ladder.enabled}"  # it decides how often is measured
        self._facts = RankFacts()
        self._device = torch.device("cpu")
        self._has_joined = False

    @property
    def _ranks(self) -> list[int]:
        if not dist.is_available() or not dist.is_initialized():
            return [0]
        return find_ranks(self._model, self._config.live.ranks)

    @property
    def place(self) -> int:
        """Of this process among the ranks."""
        ranks = self._ranks
        return 0 if len(ranks) == 1 else ranks.index(dist.get_rank())

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self._ranks)

    def set_facts(self, parts: Parts | None, problem: Exception | None) -> None:
        """Set what this rank reports to the others."""
        if parts is None:
            self._facts = RankFacts(error=str(problem), settings=self._settings)
            return
        names = sorted(
            f"{name} {tuple(parameter.shape)}" for name, parameter in self._model.named_parameters()
        )
        self._device = parts.meter.device
        self._facts = RankFacts(
            error=None if problem is None else str(problem),
            num_optimizers=len(parts.optimizers),
            settings=self._settings,
            slots=parts.slow.slots,
            quarantined=self._quarantined,
            names=hashlib.blake2b(repr(names).encode()).hexdigest(),
        )

    def join(self) -> RankGroup | None:
        """Agree with the other ranks; None if there are none."""
        if self._has_joined or not dist.is_available() or not dist.is_initialized():
            return None
        self._has_joined = True
        seconds = self._config.live.rank_timeout_seconds
        return join_group(self._ranks, self._facts, self._device, seconds)
