"""The shipper: a process that follows a journal and sends it to sinks.

    training process            shipper                                            elsewhere

    guard -> journal   ---->    Feed -> deliver -> sink.send -> Cursor    ---->    tracker, people
      (on disk)                   what is new      (per sink, a thread)              |
         ^                                                                           |
         `- the only thing that training pays for     an outage costs lag, never data

shipper.py    one thread per sink, until the run is over and everything was sent; sinks by name;
              what a sink refuses is split until the refused points are alone
feed.py       the records and events that one sink has not had yet; the important signals always,
              the others every 10 ticks
cursor.py     the position of one sink, on disk
liveness.py   whether the run is alive, stalled, died or ended
log.py        ship.log, and lines for the training log; without secrets

`python -m trimtab.observe.shipping RUN --to NAME` is what the first rank starts.
"""
