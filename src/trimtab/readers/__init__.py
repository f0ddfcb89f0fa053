"""Foreign training logs as blocks: any known format in, canonical signals out.

`read_log` is the door. One file per format; what the names of columns mean is data
(`aliases.toml`).
"""

from trimtab.readers.formats import LogFormat
from trimtab.readers.open_log import LogReading, read_log

__all__ = ["LogFormat", "LogReading", "read_log"]
