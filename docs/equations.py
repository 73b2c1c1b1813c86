"""Equations of the documentation as MathML, which browsers show by themselves: no script, no font and no other host.

The pages hold LaTeX between dollar signs, as GitHub shows it too: ``pymdownx.arithmatex`` finds it,
``latex2mathml`` converts it.
"""

import html
import logging
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["as_mathml", "on_page_content"]

log = logging.getLogger("mkdocs.hooks.equations")  # of mkdocs, so that --strict counts its warnings
FOUND = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
LETTERS = {"N": "𝒩", "P": "𝒫"}  # browsers know these, but no longer the attribute that the converter writes for them


def on_page_content(html_text: str, page: Any, **_: Any) -> str:
    """What mkdocs calls with the HTML of each page."""

    def replaced(found: re.Match[str]) -> str:
        try:
            return as_mathml(html.unescape(found[2]).strip(), block=found[1] == "div")
        except ValueError as error:
            log.warning("%s: %s", page.file.src_uri, error)
            return found[0]

    return FOUND.sub(replaced, html_text)


def as_mathml(latex: str, block: bool = False) -> str:
    """An equation as MathML. What the converter does not know it leaves as it is, and that is an error here."""
    mathml = convert(latex, display="block" if block else "inline")
    for letter, script in LETTERS.items():
        mathml = mathml.replace(f'<mi mathvariant="script">{letter}</mi>', f"<mi>{script}</mi>")
    if re.search(r"\\|mathvariant|<mi>&(amp;)?</mi>", mathml):
        raise ValueError(f"an equation must be of what latex2mathml and browsers know, got {latex!r}. Write it more simply.")
    return mathml
