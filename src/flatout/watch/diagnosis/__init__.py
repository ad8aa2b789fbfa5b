"""Slowdowns of a running job: when they began, their cause, and when they ended.

job_steps       the heartbeats of all ranks -> the steps of the job
change_points   the job's step times -> shifts that last
causes          what each rank did before and since -> the cause, and the ranks at fault
host_counters   counters of ports and storage of this host -> errors and latencies
work_per_step   the tokens or samples of the ranks -> whether steps do other work
memory_growth   the host memory of the ranks -> those that gain some with almost every block of steps
live            all of it -> findings
"""
