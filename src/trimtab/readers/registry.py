"""The log formats that trimtab reads itself."""

from collections.abc import Mapping

from trimtab.readers.csv_log import CSV
from trimtab.readers.formats import Format
from trimtab.readers.json_log import JSON
from trimtab.readers.jsonl_log import JSONL
from trimtab.readers.text import TEXT_FORMATS
from trimtab.readers.trackers import TRACKER_FORMATS

FORMATS: Mapping[str, Format] = {
    format.name: format for format in (*TRACKER_FORMATS, JSON, JSONL, *TEXT_FORMATS, CSV)
}
"""By name, in the order in which they are tried."""
