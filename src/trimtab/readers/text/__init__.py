"""Text logs of trainers: one grammar a format, one reader for all."""

from collections.abc import Mapping

from trimtab.readers.formats import LogFormat, Reader
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

TEXT_READERS: Mapping[LogFormat, Reader] = {
    # MLPerf first and DeepSpeed last: both stand among the lines of other trainers.
    LogFormat.MLPERF: MLPERF,
    LogFormat.MEGATRON: MEGATRON,
    LogFormat.NEMO: NEMO,
    LogFormat.TORCHTITAN: TORCHTITAN,
    LogFormat.OLMO: OLMO,
    LogFormat.FAIRSEQ: FAIRSEQ,
    LogFormat.NANOCHAT: NANOCHAT,
    LogFormat.LLMC: LLMC,
    LogFormat.NANOGPT: NANOGPT,
    LogFormat.MODDED_NANOGPT: MODDED_NANOGPT,
    LogFormat.DEEPSPEED: DEEPSPEED,
}
"""In the order in which they are tried."""

__all__ = ["TEXT_READERS"]
