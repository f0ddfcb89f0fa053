"""The guard in a training loop: observes every step and waits for nothing.

One step, and what acts where:

    for batch in loader:            measure/step_loop    position and facts of the batch (host)
        loss = model(batch)         measure/activations  in some steps: block outputs -> buffer
        guard.record(loss=...)      measure/step_meter   one addition on the device
        loss.backward()
        guard.clip_grad_norm_(1.0)  torch's clipping
        optimizer.step()
          pre-hook                  recover/memory_watch `recover` only: has a bit flipped since
                                    measure/step_meter   are these very gradients finite, how large
                                    ranks/exchange       one small all-reduce
                                    protect/gate         `protect` only: decides, with a second one
                                    loop/step_sync       numbers of `lag` steps ago arrive
                                    host/recorder        journals them; an observer judges
                                    recover/undo         `recover` only: restores a snapshot
          the update                happens, or leaves every bit as it was
          post-hook                 measure/telemetry    in some steps; sent with the next one
                                    recover/audit        in some steps, with a copy of the state

loop/step_monitor holds this together: a step is a state machine, whatever the user's loop does. A
guard that only observes changes nothing. Nothing on this path reads a device value on the host but
`exchange.InFlight`, where the values have long arrived. Each part has a Shield: it fails alone.

Layers, each importing only those after it (an import contract checks this):

    watch.py          builds a guard
    guard.py          what the user holds
    deepspeed/        an engine that steps by itself, in place of hooks on optimizers
    step_iterator.py  between two steps
    recover/          taking back what harmed weights or optimizer
    loop/             when a step begins and ends
    host/             records, journal, judgement, reports
    protect/          keeping bad steps from the weights
    measure/          what is measured
    ranks/            what concerns several ranks
    optimizers.py     finding optimizers;  shield.py  a bug fails alone
"""
