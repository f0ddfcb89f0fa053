"""The faults of the catalogue, each a real fault in a real run; one small file per fault.

data/         bad batches, repeated batches, a different mix
optimizer/    learning rate, schedule, weight decay, optimizer state
numerics/     overflow, NaN, logits that grow, loss reduction
machine/      bit flips, bad or slow ranks, stalls, wrong resumes
natural.py    settings at which a small model becomes unstable without an injected fault
"""
