"""What the recorder does at certain steps: when the warm-up is over, which steps are counted and traced, when to stop.

In: the time of each step. Out: the kind of the next one, a trace, the FLOPs of one step, the facts of the job. `phases`
runs through them in order; `consensus` is how all ranks come to the same plan without a collective.
"""
