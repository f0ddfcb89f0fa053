"""Causes by evidence: fit the weights in the lab, and measure how often the cause is right.

cases      one incident per faulty run with what was observed, cached on disk
fitting    shares and temperature from cases; right first, right in three, what speaks for a cause
"""
