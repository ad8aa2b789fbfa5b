"""The steps of a recorded job, all ranks together: the regular step, the stalls with their causes, and the totals.

`job_log.job_log` aligns the steps of the ranks and charges what exceeds the regular step. `totals.step_totals` returns
the mean and the regular step of that log.
"""
