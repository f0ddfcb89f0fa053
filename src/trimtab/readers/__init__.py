"""Training logs of other tools as runs, under trimtab's signal names.

`reading`            `read_log`: which reader reads a log, and the run that it returns
`formats`            what a format is; trimtab's own are listed in `reading`
`folders`            which log in a folder is meant
`csv_log`, `json_log`, `trackers/`  the formats
`general/`           any text: what a trainer prints, also in a notebook
`log_file`           the bytes and lines of a log (gzip too); `cells`: its values
`table`              columns under the log's names, and the run that they become
`aliases`            what the names mean
"""

from trimtab.readers.reading import log_formats, read_log

__all__ = ["log_formats", "read_log"]
