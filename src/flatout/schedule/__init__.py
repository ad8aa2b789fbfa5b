"""Many jobs on one cluster: a simulator of policies over job histories, and what acts on real schedulers."""
