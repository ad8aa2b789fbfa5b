"""Choose a parallel layout before a thousand GPUs start: a time and memory model, and a search over all layouts.

`search.plan` ranks the layouts of a workload on a cluster. `evaluate.evaluate` determines the model's errors on
measured runs. `calibrate.update` corrects the model with a few of them.
"""
