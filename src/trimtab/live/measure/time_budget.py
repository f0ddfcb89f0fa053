"""TimeBudget: how often a measurement may be made, by what it costs and how long a step takes.

A share of the time of training is what a user can agree to; a number of steps is cheap in one run
and dear in the next. The run measures both: the time of its usual step (`StepClock`) and that of
the measurement (`Stopwatch`).
"""

import math
import statistics
import threading
import time
from collections import deque

import torch

RECENT_STEPS = 32
"""Steps that the usual time is the median of. Chosen: evaluations, pauses and checkpoints are fewer
than half of so many steps."""

LEAST_STEPS = 4
"""Steps before the usual time is known. Chosen: the first ones allocate and compile."""

LONGEST_SHARE = 0.1
"""What a single step may be longer by, as a share of it. Chosen: no one looks for a reason
where one step in many is a tenth longer."""

_thread = threading.local()
"""`ended` is when any guard has last closed a step in this thread: the next one begins there, in
whichever loop it is. Loops that take turns are each measured without the others."""


class StepClock:
    """The time of a usual step of this run, without what is measured after its update."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._num_steps = 0
        self._ended = -math.inf
        self.seconds = math.nan
        """The median of the last steps; NaN until enough are known."""

    def update_ended(self) -> None:
        """The update of a step is over; what is measured after it is not of the step."""
        began = max(self._ended, getattr(_thread, "ended", -math.inf))
        if began > -math.inf:
            self._recent.append(time.perf_counter() - began)
            self._num_steps += 1
            if self._num_steps % LEAST_STEPS == 0:
                self.seconds = statistics.median(self._recent)

    def step_ended(self) -> None:
        """The guard is done with this step: the time of the next one begins."""
        self._ended = _thread.ended = time.perf_counter()


class Stopwatch:
    """Measures how long a piece of work takes; on an accelerator by events, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._uses_events = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._began = 0.0
        self._seconds = math.nan

    @property
    def seconds(self) -> float:
        """The time of the last piece of work: on the device, if that has done it already, or on
        the host, whichever is more."""
        if len(self._events) == 2 and self._events[1].query():
            self._seconds = max(self._seconds, self._events[0].elapsed_time(self._events[1]) / 1e3)
            self._events = []
        return self._seconds

    def start(self) -> None:
        self._began = time.perf_counter()
        if self._uses_events:
            self._seconds = self.seconds
            self._events = [torch.cuda.Event(enable_timing=True)]
            self._events[0].record()

    def stop(self) -> None:
        self._seconds = time.perf_counter() - self._began
        if self._uses_events:
            self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[1].record()


class TimeBudget:
    """A share of the time of training, for one kind of measurement."""

    def __init__(self, clock: StepClock, share: float) -> None:
        self._clock = clock
        self._share = share

    @property
    def seconds_per_step(self) -> float:
        """What may be spent in each step; NaN until the time of a step is known."""
        return self._share * self._clock.seconds

    @property
    def longest_seconds(self) -> float:
        """What may be spent in a single step, however rarely; NaN until that is known."""
        return LONGEST_SHARE * self._clock.seconds

    def steps_between(self, seconds: float) -> float:
        """Return the least steps from one measurement to the next, where one takes `seconds`."""
        return math.ceil(seconds / self.seconds_per_step) if self.seconds_per_step > 0 else math.nan
