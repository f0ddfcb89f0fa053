"""The guard in a training loop: sees every step and waits for nobody.

The way of a step, and what sits where:

    for batch in loader:                  StepLoop      position, fingerprint (host)
        loss = model(batch)               Activations   block outputs -> preallocated buffer
        guard.record(loss=...)            LossMeter     one addition on the device
        loss.backward()
        guard.clip_grad_norm_(1.0)        torch's own; its result is the norm before clipping
        optimizer.step()                  pre-hook      gradient norm, if nobody gave one
                                          post-hook     Telemetry, then the boundary:
                                            Boundary    one small all_reduce; out of the device
                                            HostSide    values of step t - L -> journal, judge

A guard that only observes changes none of them. With `mode="protect"` there is a gate in the
pre-hook that keeps bad steps from the weights (protect/).

Nothing on this path reads a device value on the host, except at the boundary, where the values
of L steps ago have long arrived. Whatever goes wrong in here is caught by the Shield: the guard
steps aside and training goes on.
"""
