"""Make an image smaller that is much larger than the crop of the training.

In: a decoded image and the crop. Out: the bytes of the smaller image, in the same format; None for an image whose
shorter side is less than twice the crop, which is packed as it is: decoding it costs little more. The shorter side
becomes 8/7 of the crop, as 256 is of 224. The training sees other pixels than before, so this is a `rounding` change.
"""

from __future__ import annotations

import io
import math
from typing import Any

from flatout.packing.extras import needs_extra

LEAST_FACTOR = 2  # of the shorter side over the crop
_SIDE_FACTOR = 8 / 7
_QUALITY = 95
_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": _QUALITY, "subsampling": 0},
    "WEBP": {"quality": _QUALITY},
}


def resized(image: Any, crop: int) -> bytes | None:
    """Return the smaller image; None if it stays as it is."""
    shorter = min(image.size)
    if shorter < LEAST_FACTOR * crop or getattr(image, "n_frames", 1) > 1:
        return None
    with needs_extra("data", "to resize images"):
        from PIL.Image import Resampling
    scale = math.ceil(crop * _SIDE_FACTOR) / shorter
    size = tuple(max(1, round(side * scale)) for side in image.size)
    # Colours of a palette cannot be mixed.
    smaller = image if image.mode in ("P", "1") else image.resize(size, Resampling.BICUBIC)
    if smaller is image:
        smaller = image.convert("RGBA" if "transparency" in image.info else "RGB").resize(size, Resampling.BICUBIC)
    options = dict(_OPTIONS.get(image.format, {}))
    for name in ("exif", "icc_profile"):
        if image.info.get(name):
            options[name] = image.info[name]
    target = io.BytesIO()
    smaller.save(target, image.format, **options)
    return target.getvalue()
