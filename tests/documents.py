"""README and the pages of the documentation, and their code blocks."""

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["DOCUMENTS", "LONG", "PAGES", "README", "ROOT", "Block", "blocks", "few_steps", "python_blocks"]

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {page.name: page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))}
DOCUMENTS = {"README.md": README, **PAGES}

# Blocks with this title take minutes or more. The tests keep their settings, but use few images and few steps.
LONG = "; tested with fewer images and steps"
FEW = 'out="run/", trunk="small", weights="random", batch_size=8, steps=2, crop=32, freeze=0)'


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(document: str, *languages: str) -> list[Block]:
    found = re.findall(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', document, flags=re.DOTALL | re.MULTILINE)
    return [block for block in map(Block._make, found) if block.language in languages]


def python_blocks(document: str) -> list[Block]:
    """Return the Python blocks, with included files."""

    def included(found: re.Match[str]) -> str:
        return (ROOT / found[1]).read_text()

    found = blocks(document, "python")
    return [block._replace(text=re.sub(r"^--8<--\n(.*)\n--8<--$", included, block.text.rstrip())) for block in found]


def few_steps(code: str) -> str:
    """Return the code of a long block with a small network and two steps."""
    assert 'out="run/")' in code
    return code.replace('out="run/")', FEW)
