"""Checkpoints of the script: when it writes one, and how a complete file is left behind whatever happens."""
