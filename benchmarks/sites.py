"""What is measured inside of models: sites found, values against a plain forward pass."""

import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.kit.site_models import Architecture, architectures, tokens
from torch import nn
from torch.nn import functional as F

import trimtab
from benchmarks.results import publish
from trimtab.core.config import Config
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.measure.activations import first_tensor
from trimtab.live.measure.sites import find_sites


def measured(architecture: Architecture, model: nn.Module, batch: torch.Tensor) -> dict[str, float]:
    """Return the signals of the first step of a watched run."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        config = Config().override({"live.telemetry_every": 1})
        with trimtab.watch(model, optimizer, run_dir=folder, config=config) as guard:
            loss = architecture.loss(model, batch)
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
        block = read_journal(RunDirectory(Path(folder))).block
    return {name: float(c.values[0]) for name, c in block.columns.items() if c.present[0]}


@contextmanager
def full_matrix(found: dict[str, float], current: list[str]) -> Iterator[None]:
    """Compute every attention logit, in double precision, while a plain forward pass runs."""
    sdpa, softmax = F.scaled_dot_product_attention, F.softmax

    def note(logits: torch.Tensor) -> None:
        found[current[0]] = max(found.get(current[0], -math.inf), float(logits.detach().amax()))

    def whole(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        keys = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3).double()
        scale = options.get("scale") or query.shape[-1] ** -0.5
        logits = query.double() @ keys.transpose(-2, -1) * scale
        if is_causal:
            future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(future, -math.inf)
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            logits = logits.masked_fill(~attn_mask, -math.inf) if is_bool else logits + attn_mask
        note(logits)
        return sdpa(query, key, value, attn_mask, dropout_p, is_causal, **options)

    def made(scores: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if current[0] and scores.dim() > 2:
            note(scores)
        return softmax(scores, *args, **options)

    F.scaled_dot_product_attention, F.softmax = whole, made  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.softmax = sdpa, softmax


def expected(architecture: Architecture, model: nn.Module, batch: torch.Tensor) -> dict[str, float]:
    """Return the same signals from a plain forward pass with the modules named by hand."""
    found: dict[str, float] = {}
    logits: dict[str, float] = {}
    current = [""]
    handles = []

    def rms(signal: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            assert tensor is not None
            found[signal] = float(tensor.detach().double().square().mean().sqrt())

        return hook

    def scores(module: nn.Module, inputs: Any, output: Any) -> None:
        out = getattr(output, "logits", output)
        out = out[0] if isinstance(out, tuple) else out
        x = out.detach().double()
        log_p = x.log_softmax(-1)
        found["max_logit"] = float(x.abs().max())
        found["max_log_z"] = float(x.logsumexp(-1).abs().max())
        found["logit_entropy"] = float(-(log_p.exp() * log_p).sum(-1).mean())

    for kind, names in architecture.expected.items():
        for name in names:
            module = model.get_submodule(name)
            if kind == "router":
                continue
            if kind == "logits":
                handles.append(module.register_forward_hook(scores))
                continue
            family = "activation_rms/" if kind == "block" else "output_rms/"
            handles.append(module.register_forward_hook(rms(f"{family}{name}")))
            if kind == "attention":

                def enter(module: nn.Module, inputs: Any, name: str = name) -> None:
                    current[0] = name

                def leave(module: nn.Module, inputs: Any, output: Any) -> None:
                    current[0] = ""

                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(leave))
    with full_matrix(logits, current):
        architecture.loss(model, batch)
    for handle in handles:
        handle.remove()
    return found | {f"max_attention_logit/{name}": value for name, value in logits.items()}


def compare(architecture: Architecture, length: int | None = None) -> tuple[bool, float, float]:
    """Return whether all sites are found, and the largest errors of values and attention maxima."""
    torch.manual_seed(0)
    model = architecture.make()
    sites: dict[str, list[str]] = {}
    for site in find_sites(model):
        sites.setdefault(site.kind, []).append(site.name)
    is_found = {k: sorted(v) for k, v in sites.items()} == {
        k: sorted(v) for k, v in architecture.expected.items()
    }
    batch = tokens() if length is None else tokens(length=length)
    reference = expected(architecture, model, batch)
    ours = measured(architecture, model, batch)
    errors = {
        name: abs(ours.get(name, math.inf) - value) / max(abs(value), 1e-6)
        for name, value in reference.items()
    }
    attention = [e for name, e in errors.items() if name.startswith("max_attention_logit")]
    others = [e for name, e in errors.items() if not name.startswith("max_attention_logit")]
    return is_found, max(others), max(attention)


def main() -> None:
    """Measure everything and publish it."""
    rows = []
    for architecture in architectures():
        is_found, error, attention = compare(architecture)
        rows.append(
            (architecture.name, "yes" if is_found else "no", f"{error:.1e}", f"{attention:.1e}")
        )
        print(*rows[-1], file=sys.stderr)
    whole = [name for name, is_found, *_ in rows if is_found == "yes"]
    missed = [name for name, is_found, *_ in rows if is_found != "yes"]
    errors = [max(float(row[at]) for row in rows) for at in (2, 3)]
    body = (
        f"Every site is found in {', '.join(whole)}; not in: {', '.join(missed) or 'none'}. Values "
        "against a plain forward pass with the modules named by hand, in double precision: the "
        f"largest relative error is {errors[0]:.1e}, of attention maxima {errors[1]:.1e}."
    )
    headline = ("architectures in which every site is found", f"{len(whole)} of {len(rows)}")
    publish("Sites", "scripts/bench sites", body, [(*headline, "10 of 12")])


if __name__ == "__main__":
    main()
