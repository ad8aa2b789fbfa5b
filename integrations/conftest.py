"""Ray's limits for busy cores, before any test imports Ray."""

from __future__ import annotations

from tests.ray_nodes import patient_ray

patient_ray()
