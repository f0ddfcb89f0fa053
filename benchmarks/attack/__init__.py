"""Attacks on the promises of the guard: what is tried so that a run, or its bits, are lost.

faults      every function of the guard raises, one at a time, in the middle of a run
timeouts    a rank comes too late at the moment of a bad step; ranks that step unequally often
purpose     what people do on purpose that looks like damage
hostile     files and inputs that were made to do harm
"""
