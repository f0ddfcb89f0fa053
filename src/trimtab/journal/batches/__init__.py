"""Which sequences and tokens of the batches around an incident are unusual.

rows            one step's batch as the guard keeps it; sequences: rare tokens, phrases, loss
tokens          token counts: over-represented tokens
batch_report    the batches of an incident --> BatchReport, to and from JSON
"""
