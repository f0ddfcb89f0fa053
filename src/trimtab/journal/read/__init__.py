"""Reading a journal.

`reader`         `read_journal`: everything as one block; `follow`: what is new
`open_segments`  finds and opens the files; `log_segment`, `sealed_segment`: the two kinds
`segment`        what both have in common; `assembly`: many segments into one block
`entry_summary`  what the entries other than records add up to
"""
