"""Which sequences and tokens of the batches around an incident are unusual.

kept_batch      the token ids of one step's batch, as the live guard keeps them
token_counts    token counts compared: over-represented tokens, frequency bands, divergence
row_scores      sequences compared: rare tokens, repeated phrases, loss
mix_shift       since when the tokens of many batches differ
examine         the batches of an incident -> BatchReport
batch_report    what a report says about them, to and from JSON
"""
