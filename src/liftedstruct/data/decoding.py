"""One image file in, one square of RGB bytes out, whatever the file is; and one short reason where that cannot be.

Threads may decode at the same time: pillow releases the interpreter lock while it works, and nothing global is switched here.
Pillow warns of much that is harmless; warnings are best ignored around such threads, once for all of them. A truncated file is
refused, unless the caller has set pillow's own ``ImageFile.LOAD_TRUNCATED_IMAGES``.
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

from liftedstruct.data.sources import FolderSource, Source, TarSource
from liftedstruct.runtime.checks import check_count, pick

__all__ = ["RESIZE_MODES", "ImageError", "SourceError", "content_hash", "decode", "is_transient", "load_rgb"]

# What is decoded inside of pillow. Others are refused: some of its plug-ins start programs (EPS) or are for fonts and icons.
FORMATS = {"AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP"}
FILTER = Image.Resampling.BILINEAR  # antialiased; bicubic rings along the edges of products on white, and takes longer
NEAR_WHITE = 250  # of 255, in gray; this and the margin of pixels that stays around a product are the authors' own numbers
MARGIN = 15
FILE_ERRORS = {  # errors of one file; any other says that its disk, its network or this machine failed, and may work again
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EINVAL, errno.EOVERFLOW, errno.EFBIG),  # a damaged file that points outside of itself
}
REASONS = (  # errors, and what to say of them in a few words that do not name the file
    (IsADirectoryError, "is a folder"),
    (PermissionError, "no permission"),
    ((FileNotFoundError, NotADirectoryError), "missing"),
    (UnidentifiedImageError, "not an image, or broken at its start"),
    (MemoryError, "does not fit into memory"),
    ((EOFError, struct.error), "truncated"),
)


class ImageError(ValueError):
    """An image that cannot be used; its text is the reason, in a few words on one line."""


class SourceError(ImageError):
    """An image that could not be reached now, whatever it holds: its disk, its network or this machine failed."""


def decode(source: Source, path: str, size: int = 256, resize_mode: str = "squash") -> NDArray[np.uint8]:
    """The image upright, in RGB, over white, as (size, size, 3) bytes; raises :class:`ImageError` and nothing else for it.

    Args:
        source: Opens the image.
        path: The image, as the source knows it.
        size: Side of the square.
        resize_mode: How a rectangle becomes a square, a name in ``RESIZE_MODES``.

    """
    shape, size = pick(RESIZE_MODES, resize_mode, "resize_mode"), check_count("size", size)
    # A photograph of many times the size is decoded by the JPEG at a half, a quarter or an eighth, never below twice the
    # size. The white border is measured in pixels of the file, so it is found at full size.
    least = None if resize_mode == "trim-letterbox" else 2 * size
    image = load_rgb(source, path, least)
    with _short_reasons():
        return np.asarray(shape(image, size))


@contextlib.contextmanager
def _short_reasons() -> Iterator[None]:
    """Whatever is raised inside becomes an :class:`ImageError`: pillow meets bad bytes with almost any exception."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        raise (SourceError if is_transient(error) else ImageError)(_reason(error)) from error


@_short_reasons()
def content_hash(source: Source, path: str) -> int:
    """64 bits of the bytes of an image file, whatever it is called.

    An image that is no file is told by what its source says of its ``content``, or by its fingerprint.

    Raises:
        ImageError: it cannot be read.

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
    """The whole image upright, in RGB, over white; both sides stay at least ``least`` where a JPEG is decoded smaller."""
    _check_file(source, path)
    with source.open(path) as image:
        if image.format is not None and image.format not in FORMATS:
            raise ImageError(f"format {image.format} is not read")
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:  # pillow only warns up to twice the limit
            raise ImageError(f"too many pixels: {image.width} x {image.height}")
        if least is not None:
            image.draft(None, (least, least))
        image.load()
        _set_upright(image)
        return _to_rgb(image)


def _check_file(source: Source, path: str) -> None:
    """Refuse what must not be opened (a pipe would wait for ever), and what has a better name than "not an image"."""
    if isinstance(source, FolderSource):
        found = (source.root / path).stat()
        if not stat.S_ISREG(found.st_mode):
            raise ImageError("is a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file")
        if found.st_size == 0:
            raise ImageError("empty file")


def _set_upright(image: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(image, in_place=True)  # turns the pixels first, then edits the EXIF
    except Exception as error:  # broken EXIF says nothing about the pixels
        if is_transient(error):
            raise


def _to_rgb(image: Image.Image) -> Image.Image:
    """RGB from any mode; what is transparent shows white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy() if isinstance(image, ImageFile.ImageFile) and image.readonly else image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _from_deep(image)
    if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        return ImageChops.invert(image).convert("RGB")  # pillow takes Adobe's inverted inks for granted
    if image.has_transparency_data:
        over = image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(over, mask=over.getchannel("A"))
        return rgb
    return image.convert("RGB")


def _from_deep(image: Image.Image) -> Image.Image:
    """Gray of 16 or 32 bits or of floats to 8 bits: by its own range, where it is a usual one, else from least to most."""
    v = np.asarray(image).astype(np.float64)
    clear = v == image.info["transparency"] if isinstance(image.info.get("transparency"), int) else None
    v[~np.isfinite(v)] = 0
    low, high = float(v.min()), float(v.max())
    usual = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(image.mode, (65535.0,))
    if image.format == "PPM":  # pillow has spread it over 16 bits
        usual = (65535.0,)
    top = next((top for top in usual if low >= 0 and high <= top), None)
    gray = v * (255 / top) if top else (v - low) * (255 / max(high - low, 1))
    gray = np.rint(gray).astype(np.uint8)
    if clear is not None:
        gray[clear] = 255
    return Image.fromarray(gray).convert("RGB")


def squash(image: Image.Image, size: int) -> Image.Image:
    """Both sides to ``size``; proportions are lost, nothing else is."""
    return image.resize((size, size), FILTER)


def letterbox(image: Image.Image, size: int) -> Image.Image:
    """The longest side to ``size``, white around."""
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (size, size), "white")
    square.paste(image.resize((width, height), FILTER), ((size - width) // 2, (size - height) // 2))
    return square


def trim_letterbox(image: Image.Image, size: int) -> Image.Image:
    """Cut the near-white border off but for a margin, then letterbox, as the paper's authors did for Online Products."""
    box = image.convert("L").point(lambda gray: gray < NEAR_WHITE).getbbox()  # of what is not nearly white
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
    """Whether an error is of the disk, the network or the machine, so that the same file may be read later."""
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
