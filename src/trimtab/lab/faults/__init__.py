"""The faults of the catalogue, each a real fault in a real run.

data_faults.py        bad batches, repeated batches, a different mix
training_faults.py    learning rate, schedule, weight decay, optimizer state; overflow, NaN, logits
                      that grow, loss reduction; settings that are unstable by nature
machine_faults.py     bit flips, bad or slow ranks, stalls, wrong resumes
harmless.py           hard negatives: changes that resemble a fault and are none
"""
