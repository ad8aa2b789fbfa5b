"""Check whether a trial still computes the right numbers: norms of gradients, results of collectives.

In: gradients before the optimizer uses them; a process group. Out: a file per rank; `trial/` compares these files.
"""
