"""Text logs of trainers: one grammar per format (`formats/`), one parser for all (`parser`)."""

from trimtab.readers.formats import Format
from trimtab.readers.text.formats.deepspeed import DEEPSPEED
from trimtab.readers.text.formats.fairseq import FAIRSEQ
from trimtab.readers.text.formats.llmc import LLMC
from trimtab.readers.text.formats.megatron import MEGATRON
from trimtab.readers.text.formats.mlperf import MLPERF
from trimtab.readers.text.formats.modded_nanogpt import MODDED_NANOGPT
from trimtab.readers.text.formats.nanochat import NANOCHAT
from trimtab.readers.text.formats.nanogpt import NANOGPT
from trimtab.readers.text.formats.nemo import NEMO
from trimtab.readers.text.formats.olmo import OLMO
from trimtab.readers.text.formats.torchtitan import TORCHTITAN

TEXT_FORMATS: tuple[Format, ...] = (
    # MLPerf first and DeepSpeed last: both appear among the lines of other trainers.
    MLPERF,
    MEGATRON,
    NEMO,
    TORCHTITAN,
    OLMO,
    FAIRSEQ,
    NANOCHAT,
    LLMC,
    NANOGPT,
    MODDED_NANOGPT,
    DEEPSPEED,
)
"""In the order in which they are tried."""

__all__ = ["TEXT_FORMATS"]
