"""Activations: numbers of what modules put out, written into a buffer by forward hooks.

Measured are the root mean square of the output of each block, attention, MLP, of the embedding and
of the final norm; the largest logit, log Z and the entropy of the output; and the largest attention
logit of each layer (`attention_logits`). `sites` finds the modules.

Hooks act only in steps whose telemetry is measured, in training, outside of function transforms. In
a compiled graph they always act, because a flag would have the graph compiled twice. A graph that
the user traces or exports gets none of their operations. A hook holds nothing but the buffer, and a
copy of a model gets no hook that does anything.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.core import signals
from trimtab.live.measure import sites
from trimtab.live.measure.attention_logits import AttentionProbe
from trimtab.live.measure.by_rank import MAXIMA
from trimtab.live.measure.experts import EXPERT_SIGNALS, ExpertLoad
from trimtab.live.measure.token_losses import LABELS, find_labelled, token_losses
from trimtab.live.ranks.shards import norm_dtype
from trimtab.live.shield import log
from trimtab.state.host_copy import local
from trimtab.state.sharded_types import is_dtensor

NOT_WRITTEN = -math.inf
"""What a slot holds until its hook has fired: no root mean square and no maximum is that low."""

OUTPUT_LOGITS = (signals.MAX_LOGIT, signals.MAX_LOG_Z, signals.LOGIT_ENTROPY)

CPU_LOGITS, DEVICE_LOGITS = 2**20, 2**24
"""Logits of the output that are measured, by the kind of device: 4 and 64 MB in fp32. Of more, rows
at even distances."""

_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)
"""Torch 2.6 does not tell: `bool()` is False."""

NO_LOGITS = (
    "trimtab: the model returns a loss and no logits, as with a fused cross entropy, so the losses "
    "of tokens are not recorded; record(token_loss=...) takes them"
)


class Activations:
    """Hooks on the sites of a model, and the buffer that they write into."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        found: Sequence[sites.Site],
        on_token_losses: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        """Measure these sites, or nothing where there are none; `on_token_losses` takes the losses
        of the tokens of a micro-batch, on the rank that records."""
        self._sites = found
        names = [name for site in self._sites for name in _names_of(site)]
        self._place = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.slots = (*(f"site:{n}" for n in self._place), *(f"written:{n}" for n in self._place))
        """The names of what `measure` returns on this rank."""
        self._buffer = _Buffer(len(self._place), device)
        self._none = torch.full((1,), NOT_WRITTEN, dtype=torch.float32, device=device)
        items = self._place.items()
        places = [[at for name, at in items if name.partition("/")[0] == m] for m in MAXIMA]
        self._maxima = [torch.tensor(at, dtype=torch.int64, device=device) for at in places]
        self._vocabularies = sites.vocabularies(model)
        modules = {id(module): module for module in model.modules()}
        parents = {id(c): m for m in modules.values() for c in m.children()}
        self._loads = {
            site.name: ExpertLoad(site.module, parents.get(id(site.module), model), device)
            for site in self._sites
            if site.kind == sites.ROUTER
        }
        self._labelled = find_labelled(model)
        self._on_token_losses = on_token_losses
        self._handles: list[RemovableHandle] = []

    @property
    def seconds(self) -> float:
        """How long the host has spent with hooks of the step that is measured."""
        return self._buffer.seconds

    def arm(self) -> None:
        began = time.perf_counter()
        self._buffer.arm()
        if not self._handles:
            for site in self._sites:
                self._hook(site)
            if self._labelled is not None and self._on_token_losses is not None:
                losses = _TokenLossHook(self._buffer, self._on_token_losses)
                hook = self._labelled.register_forward_hook(losses, with_kwargs=True)
                self._handles.append(hook)
        self._buffer.spend(began)

    def _hook(self, site: sites.Site) -> None:
        buffer, module = self._buffer, site.module
        first, *others = (self._place[name] for name in _names_of(site))
        if site.kind == sites.LOGITS:
            hook: _Hook = _LogitsHook(buffer, first, self._vocabularies, is_model=not site.name)
        elif site.kind == sites.ROUTER:
            hook = _RouterHook(buffer, first, self._loads[site.name])
        else:
            hook = _RmsHook(buffer, first)
        self._handles.append(module.register_forward_hook(hook))
        if site.kind == sites.ATTENTION:
            probe = AttentionProbe(buffer.acts, buffer.max_writer(others[0]), buffer.spend)
            self._handles += (
                module.register_forward_pre_hook(_Forget(probe.enter)),
                module.register_forward_hook(_Forget(probe.leave), always_call=True),
            )

    def measure(self) -> torch.Tensor:
        """What has been written, and where; raises what a hook has raised."""
        if self._buffer.error is not None:
            raise self._buffer.error
        values = self._buffer.values
        is_written = values != NOT_WRITTEN
        return torch.cat((torch.where(is_written, values, 0.0), is_written.float()))

    def maxima(self) -> torch.Tensor:
        """Return the numbers of MAXIMA on this rank, -infinity where nothing was written."""
        values = self._buffer.values
        return torch.stack([torch.cat((self._none, values[at])).amax() for at in self._maxima])

    def disarm(self) -> None:
        """Take the hooks off: between measured steps a forward pass runs as without trimtab."""
        self._buffer.disarm()
        if not self._buffer.is_compiled:
            self.remove()

    def remove(self) -> None:
        """Take the hooks off also where a graph was compiled with them."""
        self._buffer.disarm()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _names_of(site: sites.Site) -> tuple[str, ...]:
    if site.kind == sites.LOGITS:
        return OUTPUT_LOGITS
    if site.kind == sites.ROUTER:
        return tuple(f"{signal}{site.name}" for signal in EXPERT_SIGNALS)
    if site.kind == sites.BLOCK:
        return (f"{signals.ACTIVATION_RMS}{site.name}",)
    output = f"{signals.OUTPUT_RMS}{site.name}"
    if site.kind == sites.ATTENTION:
        return output, f"{signals.MAX_ATTENTION_LOGIT}/{site.name}"
    return (output,)


def read_activations(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the mean over the ranks that ran a module, and the largest attention logit of all."""
    found = {}
    for slot, written in sums.items():
        if slot.startswith("written:") and written > 0:
            name = slot.removeprefix("written:")
            found[name] = sums[f"site:{name}"] / written
    prefix = f"{signals.MAX_ATTENTION_LOGIT}/"
    if layers := [value for name, value in found.items() if name.startswith(prefix)]:
        is_nan = any(value != value for value in layers)
        found[signals.MAX_ATTENTION_LOGIT] = math.nan if is_nan else max(layers)
    return found


def silent_sites(sums: Mapping[str, float], prefix: str) -> list[str]:
    """Return the modules of which no rank has written a signal; none if some have."""
    prefix = f"written:{prefix}"
    found = {slot.removeprefix(prefix): n for slot, n in sums.items() if slot.startswith(prefix)}
    return [] if any(found.values()) else list(found)


class _Buffer:
    """What hooks share; it knows nothing of the guard."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.values = torch.full((size,), NOT_WRITTEN, dtype=torch.float32, device=device)
        self.is_armed = False
        self.is_compiled = False
        """Whether a graph was compiled with the hooks: without them it would be compiled again."""
        self.error: Exception | None = None
        self.seconds = 0.0
        self._has_reported = False
        """Whether the log has that there are no logits."""

    def arm(self) -> None:
        self.is_armed, self.seconds = True, 0.0
        self.values.fill_(NOT_WRITTEN)

    def disarm(self) -> None:
        self.is_armed = False

    def note_compiled(self) -> None:
        self.is_compiled = True

    def fail(self, error: Exception) -> None:
        self.error, self.is_armed = error, False

    def spend(self, began: float) -> None:
        """Count the time of a hook that began then."""
        self.seconds += time.perf_counter() - began

    def max_writer(self, place: int) -> Callable[[torch.Tensor], None]:
        """Return what writes the largest value of a step."""
        slot = self.values[place]

        def write(value: torch.Tensor) -> None:
            slot.copy_(torch.maximum(slot, value))

        return write

    def report_no_logits(self) -> None:
        if not self._has_reported:
            self._has_reported = True
            log.info(NO_LOGITS)

    def acts(self) -> bool:
        """Whether a forward pass that runs now is one of the step that is measured."""
        return (
            self.is_armed
            and torch.is_grad_enabled()
            and torch._C._functorch.maybe_current_level() is None
            and not _is_traced()
        )


def _is_traced() -> bool:
    """Whether a forward pass is traced by `torch.jit.trace` or `make_fx`, or computes no values."""
    keys = torch._C._TorchDispatchModeKey
    return (
        torch._C._is_tracing()
        or torch._C._get_dispatch_mode(keys.PROXY) is not None
        or torch._C._get_dispatch_mode(keys.FAKE) is not None
        or torch._ops._get_dispatch_mode_pre_dispatch(keys.PROXY) is not None
    )


class _Forget:
    """A callable that a copied or pickled model does not keep."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or pickled model gets a callable of the standard library that does nothing.
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Hook(_Forget):
    """The hook of one module."""

    def __init__(self, buffer: _Buffer, place: int) -> None:
        self._buffer = buffer
        self._slot = buffer.values[place]

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        # Not a context manager made from a generator: that breaks a compiled graph.
        try:
            if _is_exporting():
                return
            if torch.compiler.is_compiling():
                self._buffer.note_compiled()
                self._write(output)
            elif self._buffer.acts():
                began = time.perf_counter()
                self._write(output)
                self._buffer.spend(began)
        except Exception as error:  # it would end the user's forward pass
            self._buffer.fail(error)

    def _write(self, output: Any) -> None:
        raise NotImplementedError


class _RmsHook(_Hook):
    def _write(self, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            part = local(tensor.detach())
            norm = torch.linalg.vector_norm(part, dtype=norm_dtype(part))
            self._slot.copy_(norm / math.sqrt(max(part.numel(), 1)))


class _RouterHook(_Hook):
    def __init__(self, buffer: _Buffer, place: int, load: ExpertLoad) -> None:
        super().__init__(buffer, place)
        self._slots = buffer.values[place : place + len(EXPERT_SIGNALS)]
        self._load = load

    def _write(self, output: Any) -> None:
        found = self._load.measure(output)
        if found is not None:
            known = [NOT_WRITTEN if value is None else value for value in found]
            for slot, value in zip(self._slots, known, strict=True):
                slot.fill_(value) if isinstance(value, float) else slot.copy_(value)


class _LogitsHook(_Hook):
    """Writes the numbers of OUTPUT_LOGITS of a head, or of what a whole model returns."""

    def __init__(
        self, buffer: _Buffer, place: int, vocabularies: set[int], *, is_model: bool
    ) -> None:
        super().__init__(buffer, place)
        self._slots = buffer.values[place : place + len(OUTPUT_LOGITS)]
        self._vocabularies = vocabularies
        self._is_model = is_model

    def _write(self, output: Any) -> None:
        tensor = first_tensor(output)
        if self._is_model:
            named = _named(output, "logits")
            if named is not None:
                tensor = first_tensor(named)
            elif tensor is not None and tensor.shape[-1:].numel() not in self._vocabularies:
                tensor = None
        # Of a vocabulary that ranks share, log Z would need all of them.
        if tensor is None or tensor.dim() < 2 or is_dtensor(tensor):
            return
        found = measure_logits(tensor.detach())
        largest = torch.maximum(self._slots[:2], found[:2])
        self._slots.copy_(torch.cat((largest, found[2:])))


class _TokenLossHook(_Hook):
    """Hands on the losses of tokens of a model that was given labels."""

    def __init__(self, buffer: _Buffer, take: Callable[[torch.Tensor], None]) -> None:
        self._buffer = buffer
        self._take = take

    def __call__(  # type: ignore[override]  # torch calls it so with `with_kwargs`
        self, module: nn.Module, inputs: Any, options: Any, output: Any
    ) -> None:
        if not torch.compiler.is_compiling():
            super().__call__(module, inputs, (options, output))

    def _write(self, output: Any) -> None:
        options, output = output
        labels = options.get("shift_labels", options.get(LABELS))
        logits, loss = _named(output, "logits"), _named(output, "loss")
        if not isinstance(labels, torch.Tensor) or not isinstance(loss, torch.Tensor):
            return
        is_whole = isinstance(logits, torch.Tensor) and not is_dtensor(logits)
        if is_whole and labels.dim() == 2 and labels.shape == logits.shape[:-1]:
            self._take(token_losses(logits, labels, loss, options.get("num_items_in_batch")))
        elif logits is None:
            self._buffer.report_no_logits()


def _named(output: Any, name: str) -> Any:
    """Return what a model returns by this name; None if there is nothing."""
    found = output.get(name) if isinstance(output, Mapping) else None
    return getattr(output, name, None) if found is None else found


def measure_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return max |logit|, max |log Z| and the mean entropy, each over positions, in fp32."""
    rows = logits.flatten(0, -2)
    limit = CPU_LOGITS if rows.device.type == "cpu" else DEVICE_LOGITS
    stride = math.ceil(rows.numel() / limit)
    # Some models exclude tokens by a logit of -infinity.
    x = rows[::stride].float().clamp(min=torch.finfo(torch.float32).min)
    low, high = x.aminmax(dim=-1)
    weights = (x - high[:, None]).exp_()  # one exponential: it costs more than all else here
    total = weights.sum(dim=-1)
    log_z = high + total.log()
    entropy = log_z - torch.linalg.vecdot(weights, x) / total
    low, high = low.amin(), high.amax()
    largest = torch.maximum(high.abs(), torch.where(low < -1e30, high, low).abs())
    return torch.stack((largest, log_z.abs().amax(), entropy.mean()))


def first_tensor(output: Any) -> torch.Tensor | None:
    """The floating-point tensor that a block returns, alone or first in a tuple, list or dict."""
    if isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    elif isinstance(output, (tuple, list)):  # torch 2.6 cannot compile `tuple | list`
        output = output[0] if output else None
    is_usable = isinstance(output, torch.Tensor) and output.is_floating_point()
    return output if is_usable else None
