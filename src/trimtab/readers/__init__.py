"""Training logs of other tools as blocks, under trimtab's signal names.

`reading`    `read_log`: the one function to call
`recognise`  which format a file has; `folders`: which log in a folder is meant
`outside`    readers of the user and of plug-ins; `registry`: trimtab's own formats
`formats`    what defines a format; `csv_log`, `json_log`, `jsonl_log`, `text/`, `trackers/`
`log_file`   the bytes of a log (gzip too), `lines`: its lines, `json_objects`, `cells`: its values
`table`      columns under the log's names, `aliases`: what the names mean, `blocks`: the result
"""

from trimtab.readers.outside import log_formats
from trimtab.readers.reading import read_log

__all__ = ["log_formats", "read_log"]
