"""Shipping: the observer of a run sends it to sinks, each in a thread of its own.

    journal, observer.jsonl   -->   Feed -> deliver -> sink.send -> Cursor   -->   tracker, people
      (on disk)                      what is new      (a thread for each)             |
         ^                                                                            |
         `- the only thing that training pays for      an outage costs lag, never data

shipper.py    the threads, until the run is over and everything was sent; sinks by name; what a sink
              refuses is split until the refused points are alone
feed.py       what one sink has not had yet; the important signals always, the others every 10 ticks
cursor.py     the position of one sink, on disk
log.py        ship.log, and lines for the training log; without secrets
transport.py  requests with a hard deadline, and no secret in any message
"""
