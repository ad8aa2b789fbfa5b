"""Which parallel layout to use, before a thousand GPUs start: a time and memory model, and a search over all layouts.

`search.plan` ranks the layouts of a workload on a cluster; `evaluate.evaluate` shows how wrong the model is on runs
that were measured; `calibrate.update` corrects it with a handful of them.
"""
