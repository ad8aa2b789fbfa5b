"""The machine: its hardware, its load while a job runs (`sampler`), and the rates it delivers (`ceilings/`)."""
