"""Checkpoints of the script: note when the script writes one, and always leave a complete file behind."""
