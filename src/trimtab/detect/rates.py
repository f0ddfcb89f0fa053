"""How often each detector cries wolf: measured, and named in every finding.

False episodes per 10,000 logged points of the healthy public runs that nothing was tuned on, by the
strict scoring of the published scoreboard (docs/scoreboard.md, benchmarks/RESULTS.md).
"""

FALSE_PER_10K = {
    "loss-spike": 0.0,
    "norm-spike": 0.0,
    "level": 0.0,
    "order": 0.0,
    "throughput": 0.0,
    "leap": 0.0,
    "schedule": 0.0,
}
"""A detector that is not listed had nothing to look at: public logs have a loss, most of them step
times or a gradient norm, few a learning rate. Leaps were measured on the learning rate alone."""
