"""Detectors of the run around the model: counters, data, learning rate and speed.

counters.py        step, data position and optimizer count going back; a loss that stops coming
repeated_batch.py  a batch that was served before
token_mix.py       data that has become a different kind of text
mix_shift.py       a mix of data that has changed for good, by less than batches differ
lr_schedule.py     a learning rate that rises again in its decay
throughput.py      steps that stall, and a pace that falls
lasting_pace.py    whether a pace that fell comes back
"""
