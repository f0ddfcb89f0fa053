"""Sites: the modules of a model whose outputs are measured, found by structure and by name.

Blocks are the longest list of modules of one kind, and every other such list that holds attention.
In each, attention is the innermost module with projections of queries and keys, and the MLP is
named so or is the last linear layer outside of attention. What is not certain is not a site:
`trimtab.watch(facts={"sites": {"attention": "layers.*.mixer"}})` names it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from trimtab.core.errors import ConfigError
from trimtab.live.measure.roles import plain_name

BLOCK, EMBEDDING, ATTENTION, MLP = "block", "embedding", "attention", "mlp"
FINAL_NORM, LOGITS, ROUTER = "final_norm", "logits", "router"
KINDS = (BLOCK, EMBEDDING, ATTENTION, MLP, FINAL_NORM, LOGITS, ROUTER)


class Site(NamedTuple):
    """One module that is measured."""

    kind: str
    name: str
    """Its path in the model, without wrappers; empty for the model itself."""
    module: nn.Module


_NORM = re.compile(r"norm|^ln_?[a-z0-9]*$")
_EMBEDDING = re.compile(r"emb|^wte$|^tok_|^patch|^conv_proj$|^shared$")
_NOT_EMBEDDING = re.compile(r"rotary|rope|pos|^wpe$|unembed|embed_out")
_ATTENTION = re.compile(r"att")
_PROJECTION = re.compile(
    r"(?:^|\.)(?:q|k|qkv|wq|wk|wqkv|query|key|c_attn|query_key_value|to_qk?v?|to_k|in_proj\w*"
    r"|[qk]_proj|[qk]_lin|qkv_proj|qkv_linear|linear_qkv)(?:\.|_|$)"
)
_AROUND = (("", ""), ("w", ""), ("to_", ""), ("", "_proj"), ("", "_lin"))
_MLP = re.compile(r"mlp|ffn?$|feed_?forward|moe|densereludense")
_HEAD = re.compile(
    r"(?:^|\.)(?:lm_head|classifier|score|embed_out|unembed|to_logits)(?:\.|$)|logits"
)


def find_sites(
    model: nn.Module, given: Mapping[str, str | Sequence[str]] | None = None
) -> list[Site]:
    """Return the sites of a model; `given` names modules by kind, instead of what is found.

    Raises ConfigError for a kind that does not exist and for a name that no module has.
    """
    modules = {plain_name(f"{name}.").removesuffix("."): m for name, m in model.named_modules()}
    blocks = _find_stacks(model)
    found = [Site(BLOCK, name, module) for name, module in blocks]
    for name, block in blocks:
        found += _inside(name, block)
    outside = {
        name: module
        for name, module in modules.items()
        if name and not any(f"{name}.".startswith(f"{block}.") for block, _ in blocks)
    }
    found += _around(model, outside, [name for name, _ in blocks])
    found += _routers(modules)
    for kind, names in (given or {}).items():
        found = [site for site in found if site.kind != kind]
        found += _given(kind, names, modules)
    return found


def _given(
    kind: str, names: str | Sequence[str], modules: Mapping[str, nn.Module]
) -> Iterator[Site]:
    if kind not in KINDS:
        raise ConfigError(f"facts: sites has no {kind!r}; known: {', '.join(KINDS)}")
    for pattern in [names] if isinstance(names, str) else names:
        matches = [name for name in modules if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(f"facts: sites: the model has no module {pattern!r}")
        yield from (Site(kind, name, modules[name]) for name in matches)


def _inside(prefix: str, block: nn.Module) -> Iterator[Site]:
    """Yield the attention and the MLP of one block."""
    modules = [(name, module) for name, module in block.named_modules() if name]
    attention = [name for name, module in modules if _is_attention(name, module)]
    inner = [a for a in attention if not any(b.startswith(f"{a}.") for b in attention)]
    outer = [a for a in attention if not any(a.startswith(f"{b}.") for b in attention)]
    if not attention and _has_queries_and_keys(block):
        yield Site(ATTENTION, prefix, block)  # written into the block itself
    rest = [(n, m) for n, m in modules if not any(f"{n}.".startswith(f"{a}.") for a in outer)]
    named = [(n, m) for n, m in rest if _MLP.search(_last(n)) and not _NORM.search(_last(n))]
    mlps = [n for n, m in named if any(True for _ in m.parameters())]
    mlps = [a for a in mlps if not any(a.startswith(f"{b}.") for b in mlps)]
    if not mlps and inner:  # without attention it may be any layer
        mlps = [n for n, m in rest if _is_linear(m)][-1:]
    of_name = dict(modules)
    for kind, names in ((ATTENTION, inner), (MLP, mlps)):
        for name in names:
            path = plain_name(f"{prefix}.{name}.").removesuffix(".")
            yield Site(kind, path, of_name[name])


def _has_queries_and_keys(block: nn.Module) -> bool:
    """Return whether a module has projections of queries and of keys, or one of both."""
    names = {name.lower() for name, _ in block.named_children()}
    return any({f"{a}q{b}", f"{a}k{b}"} <= names or f"{a}qkv{b}" in names for a, b in _AROUND)


def _routers(modules: Mapping[str, nn.Module]) -> Iterator[Site]:
    """Yield what stands beside experts and chooses among them."""
    for name, module in modules.items():
        children = dict(module.named_children())
        if any("expert" in child for child in children):
            for child in ("router", "gate", "gating"):
                if child in children:
                    yield Site(ROUTER, f"{name}.{child}".lstrip("."), children[child])
                    break


def _is_attention(name: str, module: nn.Module) -> bool:
    words = (_last(name), type(module).__name__.lower())
    if _NORM.search(words[0]) or not any(_ATTENTION.search(word) for word in words):
        return False
    return any(_PROJECTION.search(parameter) for parameter, _ in module.named_parameters())


def _around(
    model: nn.Module, outside: Mapping[str, nn.Module], blocks: Sequence[str]
) -> Iterator[Site]:
    """Yield the embedding, the final norm and the logits."""
    owned = [(n, m) for n, m in outside.items() if any(True for _ in m.parameters())]
    after = [n for n in outside if n not in blocks]
    for name, module in owned:
        last = _last(name)
        is_embedding = isinstance(module, nn.Embedding) or _EMBEDDING.search(last)
        if is_embedding and not _NOT_EMBEDDING.search(last) and not _NORM.search(last):
            yield Site(EMBEDDING, name, module)
            after = [n for n in after if not n.startswith(f"{name}.")]
            break
    kept = set(after)
    left = [(n, m) for n, m in owned if n in kept]
    norms = [(n, m) for n, m in left if _NORM.search(_last(n)) or _is_norm(m)]
    if blocks and norms:
        yield Site(FINAL_NORM, *norms[-1])
    heads = [(n, m) for n, m in owned if _is_linear(m) and _is_head(model, n, m)]
    # A head that is no module, such as a tied one, is seen in what the model returns.
    yield Site(LOGITS, *heads[-1]) if heads else Site(LOGITS, "", model)


def _is_head(model: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether these are scores of tokens or classes, and not any numbers."""
    size = _out_features(module)
    config = getattr(model, "config", None)
    classes = [getattr(model, "num_classes", None), getattr(config, "num_labels", None)]
    if _HEAD.search(name.lower()):
        return size > 1
    is_last = _last(name) in ("head", "fc", "output", "decoder")
    return size in vocabularies(model) or (is_last and size > 1 and size in classes)


def vocabularies(model: nn.Module) -> set[int]:
    """Return how many tokens the embeddings of a model have."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return {table.num_embeddings for table in tables if table.num_embeddings > 1}


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def _is_linear(module: nn.Module) -> bool:
    return _out_features(module) > 0


def _out_features(module: nn.Module) -> int:
    size = getattr(module, "out_features", getattr(module, "nf", 0))  # GPT-2's Conv1D has `nf`
    return size if isinstance(size, int) else 0


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _find_stacks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the blocks, and those of further stacks with attention, such as a decoder's."""
    blocks = list(find_blocks(model))
    first = {id(module) for _, module in blocks}
    names = [name for name, _ in blocks]
    for name, children in _lists(model):
        if len(children) > 1 and not {id(m) for _, m in children} & first:
            inside = any(f"{name}.".startswith(f"{block}.") for block in names)
            modules = children[0][1].named_modules()
            if not inside and any(n and _is_attention(n, m) for n, m in modules):
                blocks += children
                names += [block for block, _ in children]
    return [(plain_name(f"{name}.").removesuffix("."), module) for name, module in blocks]


def _lists(model: nn.Module) -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """Yield each list of modules of one kind with its name and its modules."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            children = list(module.named_children())
            if len({_kind(child) for _, child in children}) == 1:
                yield name, [(f"{name}.{place}".lstrip("."), child) for place, child in children]


def find_blocks(model: nn.Module) -> Sequence[tuple[str, nn.Module]]:
    """The model's repeated blocks with their names: its longest list of modules of one kind.

    Of two lists the one that is not inside a block of the other is meant: layers, not experts.
    """
    best: Sequence[tuple[str, nn.Module]] = ()
    for name, children in _lists(model):
        is_inside = any(name.startswith(f"{block}.") for block, _ in best)
        if len(children) > max(len(best), 1) and not is_inside:
            best = children
    return best


def _kind(module: nn.Module) -> type[Any]:
    # A block compiled or checkpointed on its own is wrapped; what counts is what is inside.
    inner = getattr(module, "_orig_mod", None) or getattr(
        module, "_checkpoint_wrapped_module", None
    )
    return type(inner) if isinstance(inner, nn.Module) else type(module)
