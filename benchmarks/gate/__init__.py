"""What the gate does to training runs that are healthy, and to those that are not.

real       public runs, and the spike of BLOOM-176B put onto them
healthy    what the gate does to the runs of `benchmarks.zoo`, and what they end with
"""
