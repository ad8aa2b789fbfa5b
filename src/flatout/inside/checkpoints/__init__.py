"""Checkpoints of the script: note when the script writes one, and leave a complete file behind whatever happens."""
