"""StateHash: a checksum of weights and of moments, by role, the same for the same bits.

Bits are summed as whole numbers on the device (`shards.bits`), so one bit that differs anywhere
changes the checksum. Ranks add up vectors of fp32, which hold whole numbers up to 2**24: a checksum
of 64 bits travels as 8 numbers of 8 bits, and the sum over up to 65,536 ranks is exact.

    weights, moments   what several ranks hold alike counts once, so the checksum of a run with DDP
                       does not depend on how many ranks there are
    replicas           the first replica counts its checksum once for each of the others, those
                       count it as -1: together 0, unless a replica differs

Replicas are plain tensors that all ranks hold (DDP), and the replicated dimensions of a mesh that
come before a sharded one (HSDP). Under tensor parallelism ranks compute what they hold alike by
themselves, and may round differently: that is not compared.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.measure.roles import assign_roles
from trimtab.live.measure.step_meter import GradientNorm
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.shards import bits, has_bits
from trimtab.state.host_copy import detached
from trimtab.state.sharded_types import is_dtensor
from trimtab.state.training_state import parameters_of

NUM_PIECES, PIECE_BITS = 8, 8

WEIGHTS, MOMENTS, REPLICAS = "weights", "moments", "replicas"
_KINDS = (WEIGHTS, MOMENTS, REPLICAS)

_SPREAD = 0x9E3779B97F4A7C15
"""An odd number by which every bit of a checksum reaches the 53 that a double holds exactly."""


class StateHash:
    """The checksums of this rank, as a vector to be added up over ranks."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[Optimizer],
        gradients: GradientNorm,
        device: torch.device,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._gradients = gradients
        self._device = device
        self._roles = assign_roles(model, parameters_of(optimizers)).names
        sums = [f"hash:{kind}:{role}" for role in self._roles for kind in _KINDS]
        self.slots = (
            *(f"{name}:{piece}" for name in sums for piece in range(NUM_PIECES)),
            *("hash:compared", "hash:reporting"),
        )
        self._shifts = PIECE_BITS * torch.arange(NUM_PIECES, device=device)
        self.prepare(RankGroup())

    def prepare(self, group: RankGroup) -> None:
        """Find out what other ranks hold alike: at the start, and once ranks were compared."""
        self._group = group
        parameters = parameters_of(self._optimizers)
        roles = assign_roles(self._model, parameters, self._roles).index
        self._role_of = dict(zip(parameters, roles, strict=True))
        self._counts = {p: self._count(p) for p in parameters}
        is_compared = any(balance for _, balance in self._counts.values())
        self._facts = torch.tensor(
            [float(is_compared), 1.0], dtype=torch.float32, device=self._device
        )

    @torch.no_grad()
    def measure(self) -> torch.Tensor:
        """Return this rank's part of every sum, in the order of `slots`."""
        if not self._roles:  # nothing is held in tensors of its own, as inside an engine
            return self._facts
        if any(p not in self._role_of for p in parameters_of(self._optimizers)):
            self.prepare(self._group)
        found: dict[tuple[int, int], list[torch.Tensor]] = {}
        for (role, kind, once, balance), tensors in self._sort().items():
            sums = [bits(one).sum(dtype=torch.int64).to(self._device) for one in tensors]
            total = torch.stack(sums).sum()
            if once:
                found.setdefault((role, kind), []).append(total)
            if balance:
                found.setdefault((role, _KINDS.index(REPLICAS)), []).append(total * balance)
        none = torch.zeros((), dtype=torch.int64, device=self._device)
        keys = [(role, kind) for role in range(len(self._roles)) for kind in range(len(_KINDS))]
        totals = torch.stack([sum(found.get(key, ()), none) for key in keys])
        pieces = (totals[:, None] >> self._shifts) & (2**PIECE_BITS - 1)
        return torch.cat((pieces.flatten().float(), self._facts))

    def _sort(self) -> dict[tuple[int, int, bool, int], list[torch.Tensor]]:
        """Return the tensors of the state, those together that count alike."""
        sorted_: dict[tuple[int, int, bool, int], list[torch.Tensor]] = {}
        for parameter, tensor in self._tensors():
            kind = _KINDS.index(WEIGHTS if tensor is parameter else MOMENTS)
            if has_bits(tensor):
                key = (self._role_of[parameter], kind, *self._counts[parameter])
                sorted_.setdefault(key, []).append(detached(tensor))
        return sorted_

    def _tensors(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield parameter, parameter
                    if parameter in optimizer.state:  # a defaultdict: asking would make an entry
                        for value in optimizer.state[parameter].values():
                            if isinstance(value, torch.Tensor) and value.dim():
                                yield parameter, value

    def _count(self, parameter: torch.Tensor) -> tuple[bool, int]:
        """Return whether this rank's part counts, and how often in the balance of replicas."""
        group = self._group
        if is_dtensor(parameter):
            mesh, placements = parameter.device_mesh, parameter.placements
            place = mesh.get_coordinate() or [0] * mesh.ndim
            same = [at for at, placement in enumerate(placements) if placement.is_replicate()]
            shards = [at for at, placement in enumerate(placements) if placement.is_shard()]
            outer = [at for at in same if shards and at < shards[0]]
            copies = 1
            for at in outer:
                copies *= mesh.size(at)
            is_first = all(place[at] == 0 for at in outer)
            balance = copies - 1 if is_first else -1
            return all(place[at] == 0 for at in same), balance if copies > 1 else 0
        if group.world > 1 and self._gradients.copies_of(parameter) == group.world:
            return group.rank == 0, group.world - 1 if group.rank == 0 else -1
        return True, 0


def read_hashes(sums: Mapping[str, float], world: int) -> dict[str, float]:
    """Return the signals that the sums over all ranks give; none if a rank could not measure."""
    if sums.get("hash:reporting") != world:
        return {}
    found: dict[str, float] = {}
    differ = 0
    names = {slot.split(":")[2] for slot in sums if slot.startswith(f"hash:{WEIGHTS}:")}
    for role in sorted(names):
        totals = {kind: _total(sums, f"hash:{kind}:{role}") for kind in _KINDS}
        found[f"{signals.WEIGHT_HASH}{role}"] = _as_double(totals[WEIGHTS])
        if totals[MOMENTS]:
            found[f"{signals.MOMENT_HASH}{role}"] = _as_double(totals[MOMENTS])
        if totals[REPLICAS]:
            differ |= 1 << signals.ROLES.index(role)
    if sums["hash:compared"] > 0:
        found[signals.REPLICAS_DIFFER] = float(differ)
    return found


def _total(sums: Mapping[str, float], name: str) -> int:
    pieces = [int(sums[f"{name}:{at}"]) << (PIECE_BITS * at) for at in range(NUM_PIECES)]
    return sum(pieces) % (1 << 64)


def _as_double(total: int) -> float:
    return float(((total * _SPREAD) % (1 << 64)) >> 11)
