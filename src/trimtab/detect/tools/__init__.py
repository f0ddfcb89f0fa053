"""What detectors are made of.

baseline.py       a signal scored against its past; expectation.py has the arithmetic
excursions.py     high values that keep coming back: a second level of a thinned log
neighbours.py     a loss scored against the few just before it
score_history.py  how high scores rise when nothing is wrong: thresholds that follow the run
jump_test.py      a change from one record to the next that exceeds all recent ones
range_test.py     values that leave the range they had
running_sums.py cell_means.py cell_sums.py   sums that do not depend on how a run is cut
windows.py rows.py                           trailing moments, values with their place
"""
