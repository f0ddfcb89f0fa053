"""Reading a journal.

`reader`         `read_journal`: everything as one block; `follow`: what is new
`open_segments`  finds and opens the files; `log_segment`, `sealed_segment`: the two kinds
`segment`        what both have in common; `assembly`: many segments into one block
`segment_columns`  the columns of a journal that is too large for memory, in its files
`entry_summary`  what the entries other than records add up to
"""
