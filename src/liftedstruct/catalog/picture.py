"""Picture of answers: each query with its matches beside it."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from liftedstruct.catalog.catalog import Answer
from liftedstruct.data import FolderSource, ImageError, decode

__all__ = ["answers_picture"]

GAP, LINE = 12, 15  # pixels between tiles, and per line of text
MOST = 50  # rows
LETTERS = 6  # average width of a letter in pixels
INK, PAPER, PALE = "#1b1f24", "white", "#eef1f4"
FRAMES = {"match": "#1a7f37", "no match": "#8a929b", None: "#8a929b"}


def answers_picture(queries: Sequence[str], answers: Sequence[Answer], side: int = 128) -> Image.Image:
    """Draw a row for each query: its image, then its matches, each with distance and product. The frame shows the verdict.

    Args:
        queries: paths of the query images.
        answers: the answer to each.
        side: side of an image in pixels.

    """
    columns = 1 + max((len(answer.matches) for answer in answers), default=0)
    rows = min(len(answers), MOST)
    wide, high = side + GAP, side + GAP + 2 * LINE + 4
    picture = Image.new("RGB", (GAP + columns * wide + GAP, GAP + rows * high), PAPER)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=11)
    for row, (query, answer) in enumerate(zip(queries[:rows], answers[:rows], strict=True)):
        top, letters = GAP + row * high, side // LETTERS
        tiles = [(query, "query", answer.verdict or "")]
        tiles += [(match.path, f"{match.distance:.3f}", match.product or match.id) for match in answer.matches]
        for column, (path, first, second) in enumerate(tiles):
            left = GAP + column * wide + (GAP if column else 0)
            _paste(picture, path, left, top, side)
            if column == 0:
                draw.rectangle((left - 3, top - 3, left + side + 2, top + side + 2), outline=FRAMES[answer.verdict], width=2)
            text = second if len(second) <= letters else f"…{second[1 - letters :]}"
            draw.multiline_text((left, top + side + 4), f"{first}\n{text}", INK, font, spacing=2)
    return picture


def _paste(picture: Image.Image, path: str, left: int, top: int, side: int) -> None:
    """Paste an image into a square; leave the square empty if the image is gone."""
    picture.paste(PALE, (left, top, left + side, top + side))
    with contextlib.suppress(ImageError):
        picture.paste(Image.fromarray(decode(FolderSource(Path()), path, side, "letterbox")), (left, top))
