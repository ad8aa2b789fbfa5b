"""What a model's towers add to a sequence: their multiply-adds, and what they keep for the backward pass.

In: the workload, the images of a sequence, what is trained. Out: the towers' part of the cost model's inputs. A
sequence has as many images as the user says, each of the size that the config names; sound (Whisper's 30 s) once.
"""

from __future__ import annotations

from flatout.records.layers import Tower
from flatout.records.plan import FULL_TRAINING, Training, Workload


def tower_columns(workload: Workload, images: int = 0, training: Training = FULL_TRAINING) -> dict[str, float]:
    """Return the towers' part of the inputs. A frozen tower runs forward only: what feeds it has no gradients."""
    trained = [tower for tower in workload.towers if not training.lora_rank and tower.name not in training.frozen]
    return {
        "tower_work": _total(workload.towers, images, "multiply_adds"),
        "tower_trained_work": _total(trained, images, "multiply_adds"),
        "tower_kept": _total(trained, images, "kept_elements"),
    }


def _total(towers: list[Tower] | tuple[Tower, ...], images: int, name: str) -> float:
    return float(sum(getattr(tower, name) * (1 if tower.name == "audio" else images) for tower in towers))
