"""Whether a trial still computes the right numbers: norms of gradients, answers of collectives.

In: gradients before the optimizer uses them; a process group. Out: a file per rank, which `trial/` compares.
"""
