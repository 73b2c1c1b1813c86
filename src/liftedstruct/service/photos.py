"""Images of items as a browser shows them: the file or an upright copy of it, and thumbnails; and crops of queries."""

import functools
import io
import threading
from pathlib import Path
from typing import Any

from PIL import Image

from liftedstruct.data import FolderSource, ImageError, MemorySource
from liftedstruct.data.decoding import load_rgb
from liftedstruct.runtime.limits import available_cores

__all__ = ["MEDIA_TYPES", "cropped", "etag_of", "thumbnail", "web_image"]

MEDIA_TYPES = {name: f"image/{name.lower()}" for name in ("AVIF", "GIF", "JPEG", "PNG", "WEBP")}  # that browsers show
ORIENTATION = 0x0112  # EXIF tag
UPRIGHT = 1
KEPT = 4096  # thumbnails in memory, of a few kilobytes each

_decoding = threading.BoundedSemaphore(available_cores())  # an image in memory may be hundreds of megabytes


def cropped(content: bytes, crop: str) -> Image.Image:
    """Return a part of an image, `x,y,width,height` in fractions of its sides, EXIF orientation applied."""
    try:
        x, y, width, height = map(float, crop.split(","))
        inside = 0 <= x < x + width <= 1 + 1e-6 and 0 <= y < y + height <= 1 + 1e-6
    except ValueError:
        inside = False
    if not inside:
        raise ValueError(
            f"crop must be x,y,width,height in fractions of the image, got {crop[:50]!r}. Pass, for example, 0,0,1,1."
        )
    with _decoding:
        image = load_rgb(MemorySource([content]), "0")
        w, h = image.size
        left, top = min(int(x * w), w - 1), min(int(y * h), h - 1)
        return image.crop((left, top, max(left + 1, round((x + width) * w)), max(top + 1, round((y + height) * h))))


def etag_of(path: str, side: int = 0) -> str:
    """Return a text that changes when the image file changes; raise OSError if there is none."""
    if not Path(path).is_file():
        raise FileNotFoundError(path)
    found = Path(path).stat()
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}-{side}"'


def web_image(path: str) -> tuple[bytes, str]:
    """Return an image file and its media type; re-encoded if its pixels are not upright or browsers do not show it."""
    with _decoding:
        content = Path(path).read_bytes()
        try:
            with Image.open(io.BytesIO(content)) as image:
                if image.format in MEDIA_TYPES and image.getexif().get(ORIENTATION, UPRIGHT) == UPRIGHT:
                    return content, MEDIA_TYPES[image.format]
        except Exception:  # of many types; the next line has the reason
            pass
        return _encoded(load_rgb(MemorySource([content]), "0"), "JPEG", quality=92), MEDIA_TYPES["JPEG"]


@functools.lru_cache(KEPT)
def thumbnail(path: str, side: int, etag: str) -> bytes:
    """Return a WebP image of the file, at most `side` pixels wide and high; `etag` is its `etag_of`."""
    with _decoding:
        image = load_rgb(FolderSource(Path()), path, side)
        image.thumbnail((side, side), reducing_gap=2)
        return _encoded(image, "WEBP", quality=80)


def _encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    try:
        image.save(stream, format, **options)
    except Exception as error:  # more pixels than the format has room for
        raise ImageError(f"cannot be shown: {' '.join(str(error).split())}") from error
    return stream.getvalue()
