"""Decide what the recorder does in each step: when the warm-up ends, which steps are counted and traced, when to stop.

In: the time of each step. Out: the kind of the next step, a trace, the FLOPs of one step, the facts of the job.
`phases` runs through the phases in order; `consensus` gives all ranks the same plan without a collective.
"""
