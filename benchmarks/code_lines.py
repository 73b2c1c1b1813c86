"""Count code lines per subpackage, without comments, docstrings and blank lines.

python benchmarks/code_lines.py [FOLDER]
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "liftedstruct"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    r"""Return the number of code lines of a module.

    >>> code_lines('"What it is."\n\nx = 1  # one\n# two\ny = (\n    2\n)\n')
    4
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def main(folder: Path = SOURCE) -> None:
    """Print the code lines of every subpackage, largest first, and their sum."""
    packages: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        packages[path.relative_to(folder).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
    for package, count in packages.most_common():
        print(f"{count:6,} {package}")
    print(f"{packages.total():6,}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
