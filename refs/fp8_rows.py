"""Numbers of KV rows of 8-bit floats (e4m3), exactly.  Formats of a row are told apart by its bytes.

656: 512 latent numbers, then four float32 scales, one for each 128 of them, then 64 rotary numbers in
bfloat16.  576: 512 latent and 64 rotary numbers, all times one scale of the whole cache.  Other rows
(keys or values of one KV head): the same.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

LATENT, GROUP, ROPE = 512, 128, 64
SCALES = LATENT // GROUP
SCALED_BYTES, PLAIN_BYTES = LATENT + 4 * SCALES + 2 * ROPE, LATENT + ROPE


def numbers(rows: np.ndarray, kv_scale: float | None = None) -> np.ndarray:
    """Return float64 [..., 576] of rows [..., 656] of bytes, [..., D] of others; other types are numbers."""
    if rows.dtype != np.uint8:
        return rows.astype(np.float64)
    if rows.shape[-1] != SCALED_BYTES:
        return rows.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * float(np.float32(kv_scale))
    rows = np.ascontiguousarray(rows)
    latent = rows[..., :LATENT].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    scales = rows[..., LATENT : LATENT + 4 * SCALES].view(np.float32).astype(np.float64)
    rope = rows[..., LATENT + 4 * SCALES :].view(ml_dtypes.bfloat16).astype(np.float64)
    return np.concatenate([latent * np.repeat(scales, GROUP, axis=-1), rope], axis=-1)
