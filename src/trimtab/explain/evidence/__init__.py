"""What can be seen in the records around an incident.

check           what a yes/no test is and returns
precision       non-finite values and the loss scale
spike, slow     sudden rises and slow changes, as the textbook asks for them
observation     what an observation is: a function whose parameters are its inputs
signal_view     one signal around the onset
observations/   all observations that speak for or against causes
"""
