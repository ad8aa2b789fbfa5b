"""Read the machine: its hardware, its load while a job runs (`sampler`), and its achievable rates (`ceilings/`)."""
