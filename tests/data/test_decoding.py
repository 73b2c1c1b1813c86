import errno
import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile

from liftedstruct.data.decoding import RESIZE_MODES, ImageError, SourceError, decode, load_rgb
from liftedstruct.data.sources import FolderSource, TarSource

pytestmark = pytest.mark.filterwarnings("ignore")  # as prepare does around its threads

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
Bytes = NDArray[np.uint8]


class MemorySource:
    """Source of one image in memory, or of an exception."""

    def __init__(self, content: bytes | Image.Image | Exception) -> None:
        self.content = content

    def open(self, path: str) -> Image.Image:
        if isinstance(self.content, Exception):
            raise self.content
        return self.content if isinstance(self.content, Image.Image) else Image.open(io.BytesIO(self.content))

    def fingerprint(self, path: str) -> str:
        return path


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(content: bytes | Image.Image) -> Bytes:
    return np.asarray(load_rgb(MemorySource(content), ""))


def noise(height: int = 64, width: int = 96, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def quarters() -> Bytes:
    """Return red, green, blue and black quarters of different shapes: every rotation and flip is a different image."""
    image = np.zeros((32, 48, 3), np.uint8)
    image[:16, :16], image[:16, 16:], image[16:, :16] = RED, GREEN, BLUE
    return image


UPRIGHT = {  # EXIF orientation -> how a camera stores the upright image, derived from the table in the standard
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[::-1],  # stored row 0 is the right side of the image
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: a.transpose(1, 0, 2)[:, ::-1],  # stored row 0 is the left side, from the bottom up
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    stored = Image.fromarray(np.ascontiguousarray(UPRIGHT[orientation](quarters())))
    exif = Image.Exif()
    exif[0x0112] = orientation
    settings: dict[str, dict[str, int]] = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}
    options = settings.get(kind, {})
    found = pixels(encoded(stored, kind, exif=exif, **options))
    assert np.abs(found.astype(int) - quarters()).max() <= (8 if kind == "JPEG" else 0)


@pytest.mark.parametrize("exif", [b"Exif\0\0II*\0garbage", b"Exif\0\0" + b"\xff" * 40])
def test_broken_exif_is_ignored(exif: bytes) -> None:
    assert pixels(encoded(Image.new("RGB", (8, 8), RED), "JPEG", exif=exif)).shape == (8, 8, 3)


def test_gray_and_one_bit() -> None:
    assert (pixels(encoded(Image.new("L", (4, 3), 77))) == 77).all()
    assert (pixels(encoded(Image.new("1", (4, 3), 1))) == 255).all()


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.array([[0, 257, 32768, 65535]], np.uint16)
    expected = np.repeat(np.array([0, 1, 128, 255], np.uint8)[None, :, None], 3, axis=2)  # v / 257
    for kind in ("PNG", "TIFF"):
        assert (pixels(encoded(Image.fromarray(deep), kind)) == expected).all()
    assert (pixels(Image.fromarray(deep.astype(np.int32))) == expected).all()
    pgm = b"P5 4 1 65535\n" + deep.astype(">u2").tobytes()
    assert (pixels(pgm) == expected).all()


def test_thirty_two_bits_and_floats() -> None:
    wide = Image.fromarray(np.array([[-1000, 0, 100_000, 130_540]], np.int32))  # no standard range: min to max, 515.8 per step
    assert pixels(wide)[0, :, 0].tolist() == [0, 2, 196, 255]
    eight = encoded(Image.fromarray(np.array([[0, 7, 240]], np.int32)), "TIFF")  # 8-bit values in a 32-bit file
    assert Image.open(io.BytesIO(eight)).mode == "I"
    assert pixels(eight)[0, :, 0].tolist() == [0, 7, 240]
    dark = b"P5 3 1 65535\n" + np.array([[0, 100, 240]], ">u2").tobytes()  # 16 bits according to its header
    assert Image.open(io.BytesIO(dark)).mode == "I"
    assert pixels(dark)[0, :, 0].tolist() == [0, 0, 1]
    assert pixels(encoded(Image.fromarray(np.array([[0, 0.5, 1]], np.float32)), "TIFF"))[0, :, 0].tolist() == [0, 128, 255]
    assert pixels(encoded(Image.fromarray(np.array([[0, 7, 255]], np.float32)), "TIFF"))[0, :, 0].tolist() == [0, 7, 255]
    assert pixels(Image.fromarray(np.array([[np.nan, np.inf, 1]], np.float32)))[0, :, 0].tolist() == [0, 0, 255]


def test_cmyk() -> None:
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    dark = Image.new("CMYK", (16, 16), (0, 0, 0, 204))  # a fifth of the light
    for kind in ("TIFF", "JPEG"):
        options = {"quality": 100} if kind == "JPEG" else {}
        assert np.abs(pixels(encoded(cyan, kind, **options)).astype(int) - (0, 255, 255)).max() <= 2
        assert np.abs(pixels(encoded(dark, kind, **options)).astype(int) - 51).max() <= 2


def test_cmyk_without_adobes_marker_is_not_inverted() -> None:
    inverted = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 255)), "JPEG", quality=100)  # stored as 255 - ink
    start = inverted.index(b"\xff\xee")  # APP14, Adobe's marker
    length = 2 + int.from_bytes(inverted[start + 2 : start + 4], "big")
    plain = inverted[:start] + inverted[start + length :]
    assert Image.open(io.BytesIO(plain)).mode == "CMYK"
    assert np.abs(pixels(plain).astype(int) - (0, 255, 255)).max() <= 2  # inks 255, 0, 0, 0


def test_alpha_is_over_white() -> None:
    rgba = np.array([[(*RED, 255), (*RED, 0), (0, 0, 0, 51)]], np.uint8)
    expected = [[*RED], [*WHITE], [204, 204, 204]]  # 255 - 51
    for kind in ("PNG", "TIFF"):
        assert pixels(encoded(Image.fromarray(rgba), kind))[0].tolist() == expected
    assert pixels(encoded(Image.fromarray(rgba), "WEBP", lossless=True, exact=True))[0].tolist() == expected
    bands = (np.array([[100, 100, 0]], np.uint8), np.array([[255, 0, 51]], np.uint8))
    la = Image.merge("LA", [Image.fromarray(band) for band in bands])
    assert pixels(encoded(la))[0, :, 0].tolist() == [100, 255, 204]


def test_palettes_with_transparency() -> None:
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8)).convert("P")
    palette.putpalette([*RED, *GREEN, *BLUE])
    assert pixels(encoded(palette))[0].tolist() == [[*RED], [*GREEN], [*BLUE]]
    assert pixels(encoded(palette, transparency=1))[0].tolist() == [[*RED], [*WHITE], [*BLUE]]
    assert pixels(encoded(palette, transparency=bytes([255, 0, 51])))[0].tolist() == [[*RED], [*WHITE], [204, 204, 255]]
    assert pixels(encoded(palette, "GIF", transparency=1))[0].tolist() == [[*RED], [*WHITE], [*BLUE]]
    assert pixels(palette.convert("PA"))[0].tolist() == [[*RED], [*GREEN], [*BLUE]]


def test_one_color_as_transparent() -> None:
    two = Image.fromarray(np.array([[RED, BLUE]], np.uint8))
    assert pixels(encoded(two, transparency=BLUE))[0].tolist() == [[*RED], [*WHITE]]
    gray = Image.fromarray(np.array([[10, 20]], np.uint8))
    assert pixels(encoded(gray, transparency=20))[0, :, 0].tolist() == [10, 255]
    deep = Image.fromarray(np.array([[257, 514]], np.uint16))
    assert pixels(encoded(deep, transparency=514))[0, :, 0].tolist() == [1, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG", "AVIF"])
def test_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in (RED, GREEN, BLUE)]
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "AVIF" else {}
    found = pixels(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert np.abs(found.astype(int) - RED).max() <= 8


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_content_decides_not_the_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "image.txt").write_bytes(encoded(Image.new("RGB", (20, 10), WHITE), kind))
    found = decode(FolderSource(tmp_path), "image.txt", size=8)
    assert found.shape == (8, 8, 3)
    assert found.dtype == np.uint8
    assert found.min() >= 250


def test_resize_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 254
    found = decode(MemorySource(Image.fromarray(stripes)), "", size=16)
    assert np.abs(found[:, 1:-1].astype(int) - 127).max() <= 2  # without antialiasing: 0 or 254


def test_letterbox_pads_with_white() -> None:
    found = decode(MemorySource(Image.new("RGB", (40, 20), RED)), "", 20, "letterbox")
    assert (found[5:15] == RED).all()
    assert (found[:5] == 255).all()
    assert (found[15:] == 255).all()
    assert decode(MemorySource(Image.new("RGB", (4000, 1), RED)), "", 20, "letterbox").shape == (20, 20, 3)


def test_trim_letterbox_keeps_a_margin_of_15() -> None:
    image = np.full((200, 300, 3), 251, np.uint8)  # near-white
    image[60:130, 100:200] = RED  # with its margin 100 x 130, at rows 45 to 144 and columns 85 to 214
    found = decode(MemorySource(Image.fromarray(image)), "", 130, "trim-letterbox")
    assert (found[30:100, 15:115] == RED).all()  # 15 rows of white above the margin of 15
    assert (found[15:30] == 251).all()
    assert (found[:15] == 255).all()
    assert (found[30:100, :15] == 251).all()


def test_trim_letterbox_at_the_edge_and_of_nothing() -> None:
    image = np.full((50, 50, 3), 255, np.uint8)
    image[:20, :20] = 0  # the margin is clipped at two sides of the image
    found = decode(MemorySource(Image.fromarray(image)), "", 35, "trim-letterbox")
    assert (found[:20, :20] == 0).all()
    assert (found[20:] == 255).all()
    assert (decode(MemorySource(Image.new("RGB", (50, 30), WHITE)), "", 35, "trim-letterbox") == 255).all()


def test_large_jpegs_are_decoded_smaller_but_the_same() -> None:
    ramp = np.linspace(0, 255, 1600, dtype=np.uint8)[None, :, None].repeat(1200, 0).repeat(3, 2)
    content = encoded(Image.fromarray(ramp), "JPEG", quality=95)
    assert load_rgb(MemorySource(content), "", least=128).size == (200, 150)
    full = np.asarray(RESIZE_MODES["squash"](load_rgb(MemorySource(content), ""), 64))
    assert np.abs(decode(MemorySource(content), "", 64).astype(int) - full).max() <= 2


def bomb(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10))) + chunk(b"IEND", b"")


def refusal(source: MemorySource | FolderSource | TarSource, path: str = "") -> str:
    with pytest.raises(ImageError) as caught:
        decode(source, path, 32)
    return str(caught.value)


def test_bombs_are_refused() -> None:
    assert refusal(MemorySource(bomb(60000))).startswith("too many pixels")  # an error in pillow
    assert refusal(MemorySource(bomb(10000))) == "too many pixels: 10000 x 10000"  # a warning in pillow


def test_reasons(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    assert refusal(source, "folder.jpg") == "is a folder"
    assert refusal(source, "empty.jpg") == "empty file"
    assert refusal(source, "text.jpg").startswith("not an image")
    assert refusal(source, "pipe.jpg") == "not a regular file"
    assert refusal(source, "absent.jpg") == "missing"
    assert refusal(source, "text.jpg/below.jpg") == "missing"
    assert refusal(source, "loop.jpg").startswith("cannot be read: too many levels")
    assert refusal(source, "nul\0.jpg").startswith("broken: embedded null")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    assert refusal(TarSource(tmp_path / "x.tar"), "a").startswith("not an image")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "x"), "no permission"),
        (OSError(errno.EIO, "Input/output error"), "cannot be read: input/output error"),
        (MemoryError(), "does not fit into memory"),
        (struct.error("unpack requires 4 bytes"), "truncated"),
        (SyntaxError("broken\nPNG"), "broken: broken PNG"),
        (zlib.error("bad"), "broken: bad"),
        (RecursionError(), "broken: RecursionError"),
    ],
)
def test_whatever_is_raised_becomes_a_reason(error: Exception, reason: str) -> None:
    assert refusal(MemorySource(error)) == reason


PASSING = ("EIO", "ESTALE", "ENOMEM", "EMFILE", "ENFILE", "ENXIO")


@pytest.mark.parametrize("name", PASSING)
def test_failures_of_the_source_have_their_own_error(name: str) -> None:
    with pytest.raises(SourceError, match=r"^cannot be read: "):
        decode(MemorySource(OSError(getattr(errno, name), "failed")), "", 32)
    for error in (PermissionError(errno.EACCES, "no"), FileNotFoundError(errno.ENOENT, "no"), MemoryError(), OSError("bad")):
        with pytest.raises(ImageError) as caught:
            decode(MemorySource(error), "", 32)
        assert not isinstance(caught.value, SourceError)


class FailingFile(io.BytesIO):
    """File on a disk that fails after `good` bytes."""

    def __init__(self, content: bytes, good: int) -> None:
        super().__init__(content)
        self.good = good

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= self.good:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(size)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_disk_that_fails_makes_no_truncated_image(kind: str) -> None:
    content = encoded(noise(600, 800), kind)
    content = content[: int(0.9 * len(content))]

    class Failing(MemorySource):
        def open(self, path: str) -> Image.Image:
            return Image.open(FailingFile(content, len(content) // 2))

    with pytest.raises(SourceError, match=r"cannot be read: input/output error"):
        decode(Failing(b""), "", 32)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read any file; the exception itself is tested above")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encoded(noise()))
    (tmp_path / "secret.png").chmod(0)
    assert refusal(FolderSource(tmp_path), "secret.png") == "no permission"


def test_formats_that_start_programs_are_refused() -> None:
    eps = encoded(Image.new("RGB", (8, 8)), "EPS")
    assert refusal(MemorySource(eps)) == "unsupported format EPS"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF"])
def test_truncated_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(noise(200, 300), kind)
    cut = whole[: int(0.6 * len(whole))]
    assert refusal(MemorySource(cut)) == "truncated"
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # pillow's own setting is up to the user
    assert pixels(cut).shape == pixels(whole).shape


def test_bad_settings() -> None:
    source = MemorySource(noise())
    with pytest.raises(ValueError, match=r"one of letterbox, squash, trim-letterbox, got 'leterbox'\. Did you mean"):
        decode(source, "", 32, "leterbox")
    with pytest.raises(ValueError, match=r"size must be a whole number >= 1, got 0"):
        decode(source, "", 0)
