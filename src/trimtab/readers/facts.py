"""Facts of a run that its log states: precision, seed, number of ranks.

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


def find_facts(text: str) -> RunFacts:
    """Return what a text states about its run; what it states in two ways is left open."""
    facts = RunFacts()
    dtypes = [dtype for dtype, pattern in _DTYPES.items() if re.search(pattern, text)]
    # An fp8 run computes its other operators in bf16, and says so.
    if "fp8" in dtypes:
        dtypes = ["fp8"]
    if len(dtypes) == 1:
        facts = replace(facts, dtype=dtypes[0])
    return replace(facts, seed=_stated(_SEED, text), ranks=_stated(_RANKS, text))


def _stated(pattern: re.Pattern[str], text: str) -> int | None:
    found = {int(number) for number in pattern.findall(text)}
    return found.pop() if len(found) == 1 else None


def known_facts(stated: RunFacts, given: RunFacts) -> RunFacts:
    """Return the facts with those given by the user in place of those that the log states."""
    changes = {name: getattr(given, name) for name in ("dtype", "seed", "ranks", "link")}
    return replace(stated, **{name: fact for name, fact in changes.items() if fact is not None})
