"""Text logs of trainers: one grammar a format, one reader for all."""

from collections.abc import Mapping

from trimtab.readers.formats import LogFormat, Reader
from trimtab.readers.text.deepspeed import DEEPSPEED
from trimtab.readers.text.fairseq import FAIRSEQ
from trimtab.readers.text.llmc import LLMC
from trimtab.readers.text.megatron import MEGATRON
from trimtab.readers.text.mlperf import MLPERF
from trimtab.readers.text.modded_nanogpt import MODDED_NANOGPT
from trimtab.readers.text.nanochat import NANOCHAT
from trimtab.readers.text.nanogpt import NANOGPT
from trimtab.readers.text.nemo import NEMO
from trimtab.readers.text.olmo import OLMO
from trimtab.readers.text.torchtitan import TORCHTITAN

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
