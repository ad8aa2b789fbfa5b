"""Schedule many jobs on one cluster: a simulator of policies over job histories, and control of real schedulers."""
