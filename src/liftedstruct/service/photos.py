"""Images of items as a browser shows them: the file or an upright copy of it, and thumbnails; and crops of queries."""

import functools
import io
import threading
from pathlib import Path

from PIL import Image

from liftedstruct.data import FolderSource, MemorySource
from liftedstruct.data.decoding import load_rgb
from liftedstruct.runtime.limits import available_cores

__all__ = ["MEDIA_TYPES", "cropped", "etag_of", "thumbnail", "web_image"]

MEDIA_TYPES = {name: f"image/{name.lower()}" for name in ("AVIF", "GIF", "JPEG", "PNG", "WEBP")}  # that browsers show
ORIENTATION = 0x0112  # EXIF tag
KEPT, SMALL = 4096, 256  # thumbnails in memory, of at most so many pixels: a few kilobytes each

_decoding = threading.BoundedSemaphore(available_cores())  # an image in memory may be hundreds of megabytes


def cropped(content: bytes, crop: str) -> Image.Image:
    """Return a part of an image, `x,y,width,height` in fractions of its sides, EXIF orientation applied."""
    try:
        x, y, width, height = map(float, crop.split(","))
    except ValueError:
        x = y = width = height = -1
    right, bottom = x + width, y + height
    if not (0 <= x < right <= 1.001 and 0 <= y < bottom <= 1.001):  # fractions may be rounded
        raise ValueError(
            f"crop must be x,y,width,height in fractions of the image, got {crop[:50]!r}. Pass, such as, 0,0,0.5,1."
        )
    with _decoding:
        image = load_rgb(MemorySource([content]), "0")
        w, h = image.size
        left, top = min(int(x * w), w - 1), min(int(y * h), h - 1)
        return image.crop((left, top, max(left + 1, min(round(right * w), w)), max(top + 1, min(round(bottom * h), h))))


def etag_of(path: str, side: int) -> str:
    """Return a text that changes when the image file changes; raise OSError if there is none."""
    found = Path(path).stat()
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}-{side}"'


def web_image(path: str) -> tuple[bytes, str]:
    """Return an image file and its media type; re-encoded if its pixels are not upright or browsers do not show it."""
    with _decoding:
        image = load_rgb(FolderSource(Path()), path)  # which checks that it is an image file
        with Image.open(path) as file:
            if file.format in MEDIA_TYPES and file.getexif().get(ORIENTATION, 1) == 1:
                return Path(path).read_bytes(), MEDIA_TYPES[file.format]
        return _encoded(image, "PNG" if max(image.size) > 65_500 else "JPEG")  # the most of a JPEG


def thumbnail(path: str, side: int, etag: str) -> tuple[bytes, str]:
    """Return an image of at most `side` pixels and its media type. `etag` is the `etag_of` of its file."""
    return (_kept_thumbnail if side <= SMALL else _thumbnail)(path, side, etag)


def _thumbnail(path: str, side: int, etag: str) -> tuple[bytes, str]:
    with _decoding:
        image = load_rgb(FolderSource(Path()), path, side)
        image.thumbnail((side, side), reducing_gap=2)
        return _encoded(image, "WEBP")


_kept_thumbnail = functools.lru_cache(KEPT)(_thumbnail)


def _encoded(image: Image.Image, format: str) -> tuple[bytes, str]:
    stream = io.BytesIO()
    image.save(stream, format, quality=85)
    return stream.getvalue(), MEDIA_TYPES[format]
