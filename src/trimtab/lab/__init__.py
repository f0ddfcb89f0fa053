"""The lab: a reference trainer that reads top to bottom, real data, and the faults it is broken by.

sizes -> model -> optimizer          a small GPT, its named sizes, AdamW
text -> tokenizer -> tokens -> data  the standard library's source as labelled token windows
engines, schedule, evaluation,
checkpoints -> train                 the loop, alone or on ranks; train_config has its settings
disturbance, touch -> faults,
natural, harmless -> catalogue       what can be done to a run, and where it is touched
scenario -> trial -> suite           a run with its truth, all of them; pairing has the twins
"""

import importlib.util

from trimtab.core.errors import MissingExtra

_PACKAGES = ("torch", "tokenizers", "torchdata")
"""What the extra `lab` installs; nothing in this room works without all of them."""


def _require_extra() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the lab needs {', '.join(missing)}, not installed here; "
            'run: pip install "trimtab[lab]"'
        )


_require_extra()
