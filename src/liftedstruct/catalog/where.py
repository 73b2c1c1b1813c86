"""Filters of a catalog: an expression tree, and its text form, such as `category = chair and price < 100`.

A comparison is true if the field is present, of the value's type (number or text), and compares as stated; so it is false where
the field is missing. Numbers compare by value, texts by code point. `not` is the plain negation, also where a field is missing;
`a != b` means `not a = b`, and `a in (b, c)` means `a = b or a = c`. The fields `id` and `product` are those of the item.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from liftedstruct.runtime.checks import as_plain, pick

__all__ = [
    "EXACT",
    "OWN_FIELDS",
    "And",
    "Condition",
    "Not",
    "Or",
    "Value",
    "Where",
    "as_value",
    "check_field",
    "check_id",
    "number_of",
    "parse_where",
]

Value = str | int | float
OWN_FIELDS = ("id", "product")  # columns of an item, not metadata
FIELD = re.compile(r"[^\W\d]\w{0,62}")
NO_TEXT = re.compile("[\0\ud800-\udfff]")
EXACT = 2**53  # beyond, a float64 does not hold every integer
DEPTH = 50  # of nested parentheses
MOST = 20_000  # words and signs in a filter
OPERATORS = ("=", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Condition:
    """A field compared with a value: =, <, <=, > or >=."""

    field: str
    operator: str
    value: Value

    def __post_init__(self) -> None:
        check_field(self.field)  # it becomes a part of SQL, and so does the operator
        pick(dict.fromkeys(OPERATORS), self.operator, "operator")
        if not isinstance(as_value(self.field, self.value), str) and self.field in OWN_FIELDS:
            raise ValueError(f"{self.field} must be compared with a text, got {self.value!r}. Quote it.")


@dataclass(frozen=True)
class And:
    """True where all parts are."""

    parts: tuple["Where", ...]


@dataclass(frozen=True)
class Or:
    """True where any part is."""

    parts: tuple["Where", ...]


@dataclass(frozen=True)
class Not:
    """True where the part is false."""

    part: "Where"


Where = Condition | And | Or | Not


def check_field(name: str) -> str:
    """Return the name of a metadata field: a letter or underscore, then letters, digits and underscores, at most 63."""
    if not isinstance(name, str) or not FIELD.fullmatch(name):
        raise ValueError(
            f"a field must be a name of at most 63 letters, digits and underscores, not starting with a digit, got {name!r}. "
            "Rename it."
        )
    return name


def as_value(field: str, value: Any) -> Value:
    """Return a metadata value: a text, or a finite number that float64 holds exactly; True and False become texts."""
    value = value if isinstance(value, str) else as_plain(value)
    if isinstance(value, str):
        if not value.isprintable() and NO_TEXT.search(value):  # the first test is faster, and mostly enough
            raise ValueError(f"{field} must be valid text without NUL characters, got {value!r}. Remove them.")
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and math.isfinite(value) and (isinstance(value, float) or abs(value) <= EXACT):
        return value + 0  # no negative zero
    raise ValueError(f"{field} must be text or a finite number of at most 2^53, got {value!r}. Convert it to text.")


def check_id(name: str) -> str:
    """Return an id: a text of 1 to 1,000 bytes without NUL."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= 1000:
        raise ValueError(f"an id must be a text of 1 to 1,000 bytes, got {str(name)[:50]!r}. Change it.")
    return str(as_value("an id", name))


def number_of(word: str) -> int | float | None:
    """Return the number that a word or a cell of a CSV file is; None if it is none, or would lose leading zeros or digits.

    Examples:
        >>> number_of("79.50"), number_of("80"), number_of("01067"), number_of("12345678901234567890")
        (79.5, 80, None, None)
    """
    if not NUMBER.fullmatch(word) or not math.isfinite(number := float(word)):
        return None
    if number.is_integer() and abs(number) <= EXACT:
        return int(number)
    return None if word.lstrip("+-").isdigit() else number


TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|(?P<sign><=|>=|!=|[=<>(),])|(?P<word>[^\s=<>!(),'\"]+))"
)
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
KEYWORDS = ("and", "or", "not", "in")


def parse_where(text: str) -> Where:
    """Parse a filter, such as `category = chair and (price < 100 or not size in (S, 'extra large'))`.

    A value is a word or a quoted text; in quotes, double a quote to have one. Quote a text that looks like a
    number, such as `size = '42'` where other sizes are words.

    Examples:
        >>> parse_where("category = chair and price < 100")
        And(parts=(Condition(field='category', operator='=', value='chair'), Condition(field='price', operator='<', value=100)))
    """
    return _Parser(text).whole()


class _Parser:
    """Recursive descent: or < and < not < comparison."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at, self.depth = text, list[tuple[str, str]](), 0, 0
        end = 0
        while text[end:].strip():
            found = TOKEN.match(text, end)
            if not found:
                raise self.error(f"an unexpected {text[end:].strip()[0]!r}")
            end, kind = found.end(), str(found.lastgroup)
            self.tokens.append((kind, found[kind]))
        if len(self.tokens) > MOST:
            raise self.error(f"{len(self.tokens):,} words and signs instead of at most {MOST:,}")

    def error(self, got: str) -> ValueError:
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return ValueError(f'a filter must be like "category = chair and price < 100", got {got} in {shown!r}. Correct it.')

    def whole(self) -> Where:
        tree = self.any_of()
        if self.at < len(self.tokens):
            raise self.error(f"an unexpected {self.tokens[self.at][1]!r}")
        return tree

    def take(self, *wanted: str) -> str | None:
        """Return the next token if it is one of these words or signs, ignoring case."""
        kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind in ("word", "sign") and token.lower() in wanted:
            self.at += 1
            return token.lower()
        return None

    def need(self, *wanted: str) -> str:
        found = self.take(*wanted)
        if found is None:
            raise self.error(f"{self.upcoming()} instead of {' or '.join(wanted)}")
        return found

    def upcoming(self) -> str:
        return repr(self.tokens[self.at][1]) if self.at < len(self.tokens) else "the end"

    def any_of(self) -> Where:
        parts = [self.all_of()]
        while self.take("or"):
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def all_of(self) -> Where:
        parts = [self.negated()]
        while self.take("and"):
            parts.append(self.negated())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def negated(self) -> Where:
        self.depth += 1
        if self.depth > DEPTH:
            raise self.error(f"more than {DEPTH} nested parts")
        if self.take("not"):
            tree: Where = Not(self.negated())
        elif self.take("("):
            tree = self.any_of()
            self.need(")")
        else:
            tree = self.comparison()
        self.depth -= 1
        return tree

    def comparison(self) -> Where:
        kind, name = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind != "word" or name.lower() in KEYWORDS:
            raise self.error(f"{self.upcoming()} instead of a field")
        self.at += 1
        field = check_field(name)
        negated = bool(self.take("not"))
        operator = self.need("in") if negated else self.need(*OPERATORS, "!=", "in")
        if operator != "in":
            value = self.value(field)
            return Not(Condition(field, "=", value)) if operator == "!=" else Condition(field, operator, value)
        self.need("(")
        parts: list[Where] = [Condition(field, "=", self.value(field))]
        while self.need(",", ")") == ",":
            parts.append(Condition(field, "=", self.value(field)))
        tree = parts[0] if len(parts) == 1 else Or(tuple(parts))
        return Not(tree) if negated else tree

    def value(self, field: str) -> Value:
        kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind == "sign" or not kind or (kind == "word" and token.lower() in KEYWORDS):
            raise self.error(f"{self.upcoming()} instead of a value")
        self.at += 1
        if kind == "text":
            return as_value(field, token[1:-1].replace(token[0] * 2, token[0]))
        number = None if field in OWN_FIELDS else number_of(token)
        return as_value(field, token) if number is None else number
