"""Facts of a run that its log states: precision, seed, number of ranks, a few settings.

Arguments are printed as tables, dicts, command lines and banners. A fact counts only if all places
that state it agree.
"""

import re
from dataclasses import replace

from trimtab.core.run import RunFacts

_ON = r"[\"']?[ :=.]{0,80}(?:[Tt]rue|1)\b"
_IS = r"(?:precision|(?<!torch_)dtype)[\"']?[ :=.]{1,80}[\"']?(?:torch\.)?"
_DTYPES = {
    "bf16": rf"(?<![\w-])(?:use_)?(?:bf16|bfloat16){_ON}|--bf16(?![\w=])|{_IS}(?:bf16|bfloat16)\b",
    "fp16": rf"(?<![\w-])(?:use_)?(?:fp16|float16){_ON}|--fp16(?![\w=])"
    rf"|{_IS}(?:fp16|float16|16-mixed)\b",
    "fp8": rf"(?<![\w-])fp8{_ON}|{_IS}fp8\b",
}
_SEED = re.compile(r"(?i)(?<!\w)(?:global )?seed(?: set to)?[\"']?[ :=.]{1,80}(\d{1,9})\b")
_RANKS = re.compile(r"(?i)(?<!\w)(?:world[_ ]size|num[_ ]processes)[\"']?[ :=.]{1,80}(\d{1,6})\b")

_SAYS = r"[\"']?[ :=.]{1,80}"
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\b"
_SETTINGS = {
    "beta2": re.compile(
        rf"(?i)(?<!\w)(?:adam[_-]?)?beta_?2{_SAYS}{_NUMBER}"
        rf"|(?<!\w)betas{_SAYS}[(\[][\d. ]+,\s*{_NUMBER}"
    ),
    "epsilon": re.compile(rf"(?i)(?<!\w)adam[_-]?eps(?:ilon)?{_SAYS}{_NUMBER}"),
    "clip": re.compile(rf"(?i)(?<!\w)(?:max_grad_norm|clip[_-]grad|grad_clip){_SAYS}{_NUMBER}"),
    "batch": re.compile(
        r"(?i)(?<!\w)(?:(?:global|total)[_ -](?:train[_ -])?|effective[_ -])batch[_ -]size"
        rf"{_SAYS}{_NUMBER}"
    ),
    "warmup": re.compile(
        rf"(?i)(?<!\w)(?:lr[_-])?warm_?up[_-](?:steps|iters|iterations|ratio){_SAYS}{_NUMBER}"
    ),
}


# A line without any of these words states nothing: the patterns are slow, and most lines are noise.
_WORDS = (
    *("seed", "world", "num_proc", "num proc", "beta", "adam", "clip", "max_grad", "warm"),
    *("batch", "precision", "dtype", "fp16", "fp8", "bf16", "float16"),
)


def find_facts(text: str) -> RunFacts:
    """Return what a text states about its run; what it states in two ways is left open."""
    facts = RunFacts()
    folded = text.casefold()
    words = [word for word in _WORDS if word in folded]
    lines = text.split("\n") if words else []
    text = "\n".join(line for line in lines if any(word in line.casefold() for word in words))
    dtypes = [dtype for dtype, pattern in _DTYPES.items() if re.search(pattern, text)]
    # An fp8 run computes its other operators in bf16, and says so.
    if "fp8" in dtypes:
        dtypes = ["fp8"]
    if len(dtypes) == 1:
        facts = replace(facts, dtype=dtypes[0])
    numbers = {name: _stated(pattern, text) for name, pattern in _SETTINGS.items()}
    seed, ranks = _stated(_SEED, text), _stated(_RANKS, text)
    return replace(
        facts,
        settings={name: number for name, number in numbers.items() if number is not None},
        seed=None if seed is None else int(seed),
        ranks=None if ranks is None else int(ranks),
    )


def _stated(pattern: re.Pattern[str], text: str) -> float | None:
    found = {float(match[match.lastindex or 0]) for match in pattern.finditer(text)}
    return found.pop() if len(found) == 1 else None


def known_facts(stated: RunFacts, given: RunFacts) -> RunFacts:
    """Return the facts with those given by the user in place of those that the log states."""
    changes = {name: getattr(given, name) for name in ("dtype", "seed", "ranks", "link")}
    known = {name: fact for name, fact in changes.items() if fact is not None}
    return replace(stated, settings={**stated.settings, **given.settings}, **known)
