"""Flatout takes a distributed PyTorch training job to what its hardware really gives."""

__version__ = "0.1.0"
