"""Warnings before a failure of this node, weighed by their cost.

    xid_actions    the Xids of the kernel log, in their order -> what to do about each GPU
    expected_loss  the probability of a failure and the job's costs -> GPU-hours of draining and of waiting

Nothing is drained, reset or restarted here.
"""
