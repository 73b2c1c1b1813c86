"""Filters of a catalog: an expression tree, and its text form, such as `category = chair and price < 100`.

A comparison is true if the field is present, of the value's type (number or text), and compares as stated; so it is false where
the field is missing. Numbers compare by value, texts by code point. `not` is the plain negation, also where a field is missing;
`a != b` means `not a = b`, and `a in (b, c)` means `a = b or a = c`. The fields `id` and `product` are those of the item.
"""

import math
import re
from collections.abc import Mapping
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
    "matches",
    "parse_where",
]

Value = str | int | float
OWN_FIELDS = ("id", "product")  # columns of an item, not metadata
FIELD = re.compile(r"[^\W\d]\w{0,62}")
EXACT = 2**53  # beyond, a float64 does not hold every integer
DEPTH = 50  # of nested parentheses
COMPARE: dict[str, Any] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class Condition:
    """A field compared with a value: =, <, <=, > or >=."""

    field: str
    operator: str
    value: Value

    def __post_init__(self) -> None:
        check_field(self.field)  # it becomes a part of SQL, and so does the operator
        pick(COMPARE, self.operator, "operator")
        as_value(self.field, self.value)


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
    """Return a metadata value: a text, or a finite number that float64 holds exactly; true and false become 1 and 0."""
    value = as_plain(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"{field} must be valid text without NUL characters, got {value!r}. Remove them.")
        return value
    if isinstance(value, int | float) and math.isfinite(value) and (isinstance(value, float) or abs(value) <= EXACT):
        return value + 0  # no negative zero
    raise ValueError(f"{field} must be text or a finite number of at most 2^53, got {value!r}. Convert it to text.")


def check_id(name: str) -> str:
    """Return an id: a text of 1 to 1,000 bytes without NUL."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= 1000:
        raise ValueError(f"an id must be a text of 1 to 1,000 bytes, got {str(name)[:50]!r}. Change it.")
    return str(as_value("an id", name))


def matches(where: Where | None, fields: Mapping[str, Value]) -> bool:
    """Return whether a filter is true for an item with these fields. This defines what every store must return."""
    match where:
        case None:
            return True
        case And(parts):
            return all(matches(part, fields) for part in parts)
        case Or(parts):
            return any(matches(part, fields) for part in parts)
        case Not(part):
            return not matches(part, fields)
        case Condition(field, operator, value):
            found = fields.get(field)
            return found is not None and isinstance(found, str) == isinstance(value, str) and COMPARE[operator](found, value)


TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|(?P<sign><=|>=|!=|[=<>(),])|(?P<word>[^\s=<>!(),'\"]+))"
)
# with leading zeros, as in a postal code, it is a word, also in a CSV file
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
KEYWORDS = ("and", "or", "not", "in")


def parse_where(text: str) -> Where:
    """Parse a filter, such as `category = chair and (price < 100 or not size in (S, 'extra large'))`.

    A value is a number, a word or a quoted text; in quotes, double a quote to have one.

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

    def error(self, got: str) -> ValueError:
        return ValueError(f'a filter must be like "category = chair and price < 100", got {got} in {self.text!r}. Correct it.')

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
        operator = self.need("in") if negated else self.need(*COMPARE, "!=", "in")
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
        if field in OWN_FIELDS:  # texts
            return as_value(field, token)
        if NUMBER.fullmatch(token):
            number = float(token)
            return as_value(field, int(number) if number.is_integer() and abs(number) <= EXACT else number)
        return as_value(field, {"true": 1, "false": 0}.get(token.lower(), token))
