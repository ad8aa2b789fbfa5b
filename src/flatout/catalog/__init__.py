"""Vendor facts as data, each entry with its source and date. Numbers from other sources are kept elsewhere."""

from flatout.catalog.gpus import all_gpu_facts, gpu_facts
from flatout.catalog.models import all_models
from flatout.catalog.systems import System, all_systems

__all__ = ["System", "all_gpu_facts", "all_models", "all_systems", "gpu_facts"]
