"""The machine: what is here and how busy it is. So far: a sampler that runs beside a job (`sampler`)."""
