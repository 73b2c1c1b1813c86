"""Convert the documentation's equations to MathML, which browsers render without scripts, fonts or other hosts.

The pages contain LaTeX between dollar signs, which GitHub renders, too. `pymdownx.arithmatex` finds it and `latex2mathml`
converts it.
"""

import html
import logging
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["as_mathml", "on_page_content"]

log = logging.getLogger("mkdocs.hooks.equations")  # an mkdocs logger, so that --strict counts its warnings
FOUND = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
LETTERS = {"N": "𝒩", "P": "𝒫"}  # browsers no longer support the converter's mathvariant="script"


def on_page_content(html_text: str, page: Any, **_: Any) -> str:
    """Replace the equations in the HTML of a page; called by mkdocs."""

    def replaced(found: re.Match[str]) -> str:
        try:
            return as_mathml(html.unescape(found[2]).strip(), block=found[1] == "div")
        except ValueError as error:
            log.warning("%s: %s", page.file.src_uri, error)
            return found[0]

    return FOUND.sub(replaced, html_text)


def as_mathml(latex: str, block: bool = False) -> str:
    """Convert an equation to MathML; raise ValueError for LaTeX that the converter or browsers do not support."""
    mathml = convert(latex, display="block" if block else "inline")
    for letter, script in LETTERS.items():
        mathml = mathml.replace(f'<mi mathvariant="script">{letter}</mi>', f"<mi>{script}</mi>")
    if re.search(r"\\|mathvariant|<mi>&(amp;)?</mi>", mathml):
        raise ValueError(f"an equation must use LaTeX that latex2mathml and browsers support, got {latex!r}. Simplify it.")
    return mathml
