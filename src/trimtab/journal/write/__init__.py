"""Writing a journal.

`writer`          `JournalWriter`, called by the training loop, and its thread
`record_queue`    the bounded queue between the two; `record_layouts`: records as bytes
`open_segment`    the log that is being written; `sealed_segment`: the columns of a finished one
`sealing`         from the one to the other; `lock`: one writer at a time
"""
