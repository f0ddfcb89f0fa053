"""`trimtab selftest`: does the guard keep its promises on this machine and this device?

run.py            picks the device, makes every check, and collects the results
results.py        one line per check: passed, failed or skipped, and why
loop.py           a small model and the loops that train it, with and without a guard
bits.py           compares all that two runs leave, bit by bit
same_bits.py      `observe` changes nothing, in fp32, bf16 and fp16
operations.py     counts operations and host reads
host_reads.py     nothing on the step path reads a device value on the host
gate.py           `protect` keeps a NaN step out of weights and optimizer state
rollback.py       `recover` returns to the same bits
two_ranks.py      two processes decide the same, and stay equal
rank_worker.py    one of the two
"""

from trimtab.selftest.results import CheckResult, Outcome, SelfTest
from trimtab.selftest.run import run_selftest

__all__ = ["CheckResult", "Outcome", "SelfTest", "run_selftest"]
