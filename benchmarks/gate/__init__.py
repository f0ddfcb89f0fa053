"""What the gate does to training runs that are healthy, and to those that are not.

real       public runs, and the spike of BLOOM-176B put onto them
session    one small training run, with the gate or without it
kinds/     healthy runs that are unlike pretraining
healthy    what the gate does to those, and what they end with
damage     damaged weights, and streams that the gate lets through
"""
