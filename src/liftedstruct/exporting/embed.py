"""Embed image files with the model in this folder: python embed.py photo.jpg other.png

It needs numpy, pillow and onnxruntime. From Python: Model("folder").encode(["photo.jpg"]).
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageOps

__all__ = ["Model", "rgb"]

BILINEAR = Image.Resampling.BILINEAR


def rgb(file, least=None):
    """Load an image as RGB: upright, transparency over white, deep gray scaled to 8 bits."""
    with Image.open(file) as image:
        if least:
            image.draft(None, (least, least))  # a large JPEG is decoded at a reduced scale
        image.load()
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except Exception:  # the pixels may be fine if only the EXIF is broken
            pass
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            v, clear = np.asarray(image).astype(np.float64), image.info.get("transparency")
            mask = v == clear if isinstance(clear, int) else np.zeros(v.shape, bool)
            v[~np.isfinite(v)] = 0
            tops = {"F": (1, 255, 65535), "I": (255, 65535)}.get(image.mode, (65535,))
            tops = (65535,) if image.format == "PPM" else tops
            top = next((top for top in tops if v.min() >= 0 and v.max() <= top), None)
            v = v * (255 / top) if top else (v - v.min()) * (255 / max(v.max() - v.min(), 1))
            return Image.fromarray(np.where(mask, 255, np.rint(v)).astype(np.uint8)).convert("RGB")
        if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
            return ImageChops.invert(image).convert("RGB")
        if image.has_transparency_data:
            over, white = image.convert("RGBA"), Image.new("RGB", image.size, "white")
            white.paste(over, mask=over.getchannel("A"))
            return white
        return image.convert("RGB")


class Model:
    """The model in a folder."""

    def __init__(self, folder=Path(__file__).parent):
        import onnxruntime

        settings = json.loads((Path(folder) / "preprocessor_config.json").read_text(encoding="utf-8"))
        self.mode, self.size, self.crop = settings["resize_mode"], settings["size"]["height"], settings["crop_size"]["height"]
        self.session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", providers=["CPUExecutionProvider"])

    def pixels(self, file):
        """Return the center crop of an image, (crop, crop, 3) uint8."""
        size = self.size
        image = rgb(file, None if self.mode == "trim-letterbox" else 2 * size)
        if self.mode == "trim-letterbox" and (box := image.convert("L").point(lambda gray: gray < 250).getbbox()):
            image = image.crop([max(a - 15, 0) for a in box[:2]] + [min(a + 15, b) for a, b in zip(box[2:], image.size)])
        width, height = (
            (size, size) if self.mode == "squash" else (max(1, round(s * (size / max(image.size)))) for s in image.size)
        )
        square = Image.new("RGB", (size, size), "white")
        square.paste(image.resize((width, height), BILINEAR), ((size - width) // 2, (size - height) // 2))
        start = (size - self.crop) // 2
        return np.asarray(square)[start : start + self.crop, start : start + self.crop]

    def encode(self, files, batch_size=32):
        """Return the embeddings of image files, (n, dim) float32."""
        batches = (files[i : i + batch_size] for i in range(0, len(files), batch_size))
        return np.concatenate([self.session.run(None, {"pixels": np.stack([self.pixels(f) for f in b])})[0] for b in batches])


if __name__ == "__main__":
    for name, row in zip(sys.argv[1:], Model().encode(sys.argv[1:]) if sys.argv[1:] else ()):
        print(json.dumps({"file": name, "embedding": row.tolist()}))
