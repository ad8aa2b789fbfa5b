"""Vendor facts as data: each entry with its source and date. No measured, assumed or predicted number lives here."""

from flatout.catalog.gpus import all_gpu_facts, gpu_facts

__all__ = ["all_gpu_facts", "gpu_facts"]
