"""What the trial of states restores, proposes and leaves alone (`scripts/bench trial`).

faults       what goes wrong in a run, and runs in which nothing does
purposes     what people change on purpose
worlds       five runs that no threshold was chosen on
loops        how they are trained: plain torch, the Trainer of Hugging Face, Lightning
measurement  one run, and what is noted of it
tables       the outcomes of all runs, and the tables that they make
"""
