"""Plan for serving a language model: its memory, the time of a step of its engine, and the fewest GPUs for a load."""
