"""Many jobs on one cluster: what another policy would do, and having it done on the scheduler that already runs."""
