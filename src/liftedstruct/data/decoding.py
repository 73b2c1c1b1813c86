"""Decode image files of any supported format into RGB squares, with a short reason for each image that cannot be decoded.

Decoding is thread-safe: pillow releases the GIL while it decodes, and this module changes no global state. Pillow emits many
harmless warnings; callers should ignore them once, around all threads. A truncated file is an error unless the caller sets
pillow's `ImageFile.LOAD_TRUNCATED_IMAGES`.
"""

import contextlib
import errno
import functools
import hashlib
import stat
import struct
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageFile, ImageOps, UnidentifiedImageError

from liftedstruct.data.sources import FolderSource, MemorySource, Source, TarSource
from liftedstruct.runtime.checks import check_count, pick

__all__ = ["RESIZE_MODES", "ImageError", "SourceError", "content_hash", "decode", "is_transient", "load_rgb"]

# Formats that pillow decodes itself. Others are rejected: some plug-ins start programs (EPS) or are for fonts and icons.
FORMATS = {"AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP"}
FILTER = Image.Resampling.BILINEAR  # antialiased; bicubic rings at the edges of products on white, and is slower
NEAR_WHITE = 250  # gray level out of 255; this and MARGIN, the margin around a product in pixels, are the authors' values
MARGIN = 15
FILE_ERRORS = {  # errors of a single file; any other is a failure of the disk, network or machine, and may be temporary
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EINVAL, errno.EOVERFLOW, errno.EFBIG),  # a damaged file with offsets beyond its end
}
REASONS = (  # exception types and their short reasons, without the file name
    (IsADirectoryError, "is a folder"),
    (PermissionError, "no permission"),
    ((FileNotFoundError, NotADirectoryError), "missing"),
    (UnidentifiedImageError, "not an image, or broken at its start"),
    (MemoryError, "does not fit into memory"),
    ((EOFError, struct.error), "truncated"),
)


class ImageError(ValueError):
    """Error for an image that cannot be used; the message is a short reason on one line."""


class SourceError(ImageError):
    """Error for an image that could not be read because its disk, the network or this machine failed."""


def decode(source: Source, path: str, size: int = 256, resize_mode: str = "squash") -> NDArray[np.uint8]:
    """Decode an image into (size, size, 3) uint8 RGB: EXIF orientation applied, transparency over white.

    Args:
        source: Source that opens the image.
        path: Path of the image in the source.
        size: Side length of the square in pixels.
        resize_mode: How a rectangular image becomes a square, a key of `RESIZE_MODES`.

    Raises:
        ImageError: The image cannot be decoded. No other exception is raised for a bad image.

    """
    shape, size = pick(RESIZE_MODES, resize_mode, "resize_mode"), check_count("size", size)
    # A large JPEG is decoded at 1/2, 1/4 or 1/8 scale, but to at least twice the size. Trimming measures the white border in
    # pixels of the file, so it needs full resolution.
    least = None if resize_mode == "trim-letterbox" else 2 * size
    image = load_rgb(source, path, least)
    with _short_reasons():
        return np.asarray(shape(image, size))


@contextlib.contextmanager
def _short_reasons() -> Iterator[None]:
    """Convert any exception to an `ImageError`: pillow raises almost any type for bad bytes."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        raise (SourceError if is_transient(error) else ImageError)(_reason(error)) from error


@_short_reasons()
def content_hash(source: Source, path: str) -> int:
    """Return a 64-bit hash of the bytes of an image file, independent of its name.

    For images that are not files, hash the source's `content(path)` if it has one, else its `fingerprint(path)`.

    Raises:
        ImageError: The image cannot be read.

    """
    blake = functools.partial(hashlib.blake2b, digest_size=8)
    if isinstance(source, FolderSource):
        with (source.root / path).open("rb") as file:
            digest = hashlib.file_digest(file, blake).digest()
    else:
        text = getattr(source, "content", source.fingerprint)
        digest = blake(source.read(path) if isinstance(source, TarSource) else text(path).encode()).digest()
    return int.from_bytes(digest, "little")


@_short_reasons()
def load_rgb(source: Source, path: str, least: int | None = None) -> Image.Image:
    """Load an image as RGB, EXIF orientation applied, transparency over white.

    With `least`, a JPEG may be decoded at reduced scale, with both sides at least that long.
    """
    _check_file(source, path)
    with source.open(path) as image:
        if image.format is not None and image.format not in FORMATS:
            raise ImageError(f"unsupported format {image.format}")
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:  # pillow only warns up to twice the limit
            raise ImageError(f"too many pixels: {image.width} x {image.height}")
        if least is not None:
            image.draft(None, (least, least))
        image.load()
        _set_upright(image)
        return _to_rgb(image)


def _check_file(source: Source, path: str) -> None:
    """Reject files that must not be opened (a pipe would block), and give a more specific reason than "not an image"."""
    file = source.file(path) if isinstance(source, FolderSource | MemorySource) else None
    if file is not None:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ImageError("is a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file")
        if found.st_size == 0:
            raise ImageError("empty file")


def _set_upright(image: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(image, in_place=True)  # rotates the pixels before it edits the EXIF
    except Exception as error:  # the pixels may be fine if only the EXIF is broken
        if is_transient(error):
            raise


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB, with transparency over white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy() if isinstance(image, ImageFile.ImageFile) and image.readonly else image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _from_deep(image)
    if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        return ImageChops.invert(image).convert("RGB")  # pillow assumes Adobe's inverted CMYK
    if image.has_transparency_data:
        over = image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(over, mask=over.getchannel("A"))
        return rgb
    return image.convert("RGB")


def _from_deep(image: Image.Image) -> Image.Image:
    """Convert 16-bit, 32-bit or float grayscale to 8 bits: by a standard range if the values fit one, else min to max."""
    v = np.asarray(image).astype(np.float64)
    clear = v == image.info["transparency"] if isinstance(image.info.get("transparency"), int) else None
    v[~np.isfinite(v)] = 0
    low, high = float(v.min()), float(v.max())
    usual = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(image.mode, (65535.0,))
    if image.format == "PPM":  # pillow scales it to 16 bits
        usual = (65535.0,)
    top = next((top for top in usual if low >= 0 and high <= top), None)
    gray = v * (255 / top) if top else (v - low) * (255 / max(high - low, 1))
    gray = np.rint(gray).astype(np.uint8)
    if clear is not None:
        gray[clear] = 255
    return Image.fromarray(gray).convert("RGB")


def squash(image: Image.Image, size: int) -> Image.Image:
    """Resize both sides to the target size, ignoring the aspect ratio."""
    return image.resize((size, size), FILTER)


def letterbox(image: Image.Image, size: int) -> Image.Image:
    """Resize the longer side to the target size and pad with white."""
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (size, size), "white")
    square.paste(image.resize((width, height), FILTER), ((size - width) // 2, (size - height) // 2))
    return square


def trim_letterbox(image: Image.Image, size: int) -> Image.Image:
    """Trim the near-white border except for a margin, then letterbox, as the paper's authors did for Online Products."""
    box = image.convert("L").point(lambda gray: gray < NEAR_WHITE).getbbox()  # of the pixels that are not near white
    if box:
        left, top = max(0, box[0] - MARGIN), max(0, box[1] - MARGIN)
        right, bottom = min(image.width, box[2] + MARGIN), min(image.height, box[3] + MARGIN)
        image = image.crop((left, top, right, bottom))
    return letterbox(image, size)


RESIZE_MODES: dict[str, Callable[[Image.Image, int], Image.Image]] = {
    "letterbox": letterbox,
    "squash": squash,
    "trim-letterbox": trim_letterbox,
}


def is_transient(error: BaseException) -> bool:
    """Return whether an error comes from the disk, network or machine, so that reading the file may succeed later."""
    return isinstance(error, OSError) and error.errno is not None and error.errno not in FILE_ERRORS


def _reason(error: BaseException) -> str:
    for kinds, reason in REASONS:
        if isinstance(error, kinds):
            return reason
    text = " ".join(str(error).split())
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"too many pixels: {text}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {(error.strerror or text).lower()}"
    if "truncated" in text.lower():
        return "truncated"
    return f"broken: {text[:100] or type(error).__name__}"
