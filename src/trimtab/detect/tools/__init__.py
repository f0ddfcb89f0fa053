"""What detectors are made of.

series.py         values of one signal with their place, and sums over the latest ones
baseline.py       a signal scored against its past, as far as its values are trusted
score_history.py  how high scores rise when nothing is wrong: thresholds that follow the run
range_test.py     values that leave the range they had
"""
