"""One picture of a predicted scan: a slice of the image, its mask, the confidence, and where the mask is uncertain.

The slice is the one with the largest predicted foreground, else the middle one. Rows and columns lie as one looks at a
patient: superior (in axial slices anterior) at the top, the patient's right on the left.
"""

import io

import numpy as np
from numpy import ndarray as Array
from PIL import Image

from calibseg.io.label_colours import class_rgb

SIDE = 320  # pixels of the longer side of a panel
SURE = 0.75  # confidence below which a voxel is marked as uncertain
MARK = (255, 120, 0)
RAMP = np.array([[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]])


def quick_look(image: Array, label: Array, confidence: Array, axis: int, spacing_mm: tuple[float, ...]) -> bytes:
    """A PNG of four panels beside each other; image, label and confidence are slices [h w] in RAS+."""
    low, high = np.percentile(image, [0.5, 99.5])
    grey = np.clip((image - low) / max(float(high - low), 1e-12), 0, 1)[..., None] * np.full(3, 255.0)
    mask = _painted(grey, label)
    at = np.clip((confidence - 0.3) / 0.7, 0, 1) * (len(RAMP) - 1)
    low_end = np.minimum(at.astype(int), len(RAMP) - 2)
    sure = RAMP[low_end] + (RAMP[low_end + 1] - RAMP[low_end]) * (at - low_end)[..., None]
    doubtful = np.where((confidence < SURE)[..., None], np.array(MARK, float), 0.5 * grey)
    height, width = (mm for number, mm in enumerate(spacing_mm) if number != axis)
    panels = [_panel(panel_image, axis, height / width) for panel_image in (grey, mask, sure, doubtful)]
    gap = np.full((panels[0].shape[0], 6, 3), 255, np.uint8)
    picture = np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)
    written = io.BytesIO()
    Image.fromarray(picture).save(written, "PNG", optimize=True)
    return written.getvalue()


def _painted(grey: Array, label: Array) -> Array:
    """Labels in colour over the image, stronger at their edges."""
    picture = grey.copy()
    edge = np.zeros(label.shape, bool)
    edge[1:] |= label[1:] != label[:-1]
    edge[:, 1:] |= label[:, 1:] != label[:, :-1]
    for k in np.unique(label[label > 0]):
        for where, alpha in (((label == k) & ~edge, 0.4), ((label == k) & edge, 0.9)):
            picture[where] = (1 - alpha) * picture[where] + alpha * np.array(class_rgb(int(k)))
    return picture


def _panel(picture: Array, axis: int, aspect: float) -> Array:
    """Turned as one looks at a patient, voxels as high as they are, and large enough to be seen."""
    turned = picture[::-1] if axis == 2 else picture[::-1, ::-1]
    rows, columns = turned.shape[0] * aspect, turned.shape[1]
    zoom = SIDE / max(rows, columns)
    size = max(1, round(columns * zoom)), max(1, round(rows * zoom))
    shown = Image.fromarray(np.rint(np.clip(turned, 0, 255)).astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    return np.asarray(shown)
