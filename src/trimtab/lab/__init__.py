"""The lab: a reference trainer, real text, and real faults with a known truth.

corpus/      the standard library's source as labelled token windows, by data position
model/       a small GPT, its named sizes, AdamW
trainer/     the training loop, its ranks and checkpoints; interventions and injection points
faults/      the fault catalogue; settings that are unstable by nature; harmless look-alikes
scenarios/   the registry of all kinds; reproducible runs with their truth; the suite
practice/    exercises: look at a run, decide what to do, see the result of every answer
rl/          a policy that learns to add, and the faults R01 to R12
margins.py   a small GPT without one or two of its safeguards
demo.py      the run behind `trimtab demo`
"""

import importlib.util

from trimtab.core.errors import MissingExtra

_PACKAGES = ("torch", "tokenizers")
"""What the extra `lab` installs; the lab needs all of them."""


def _require_extra() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise MissingExtra.of(f"the lab needs packages that are not installed: {names}", "lab")


_require_extra()
