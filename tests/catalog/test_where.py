"""The text form of filters: what it means, what it refuses, and that a printed tree parses back."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.shop import matches
from liftedstruct.catalog.store import Item, open_store
from liftedstruct.catalog.where import (
    KEYWORDS,
    OPERATORS,
    And,
    Condition,
    Not,
    Or,
    Value,
    Where,
    as_value,
    check_field,
    check_id,
    number_of,
    parse_where,
)

A, B, C = (Condition(name, "=", 1) for name in "abc")
INJECTIONS = ["' OR '1'='1", "x'); DROP TABLE items_1; --", '" or 1=1 --', "%s", "{0}", "\\", "a = 1 or b"]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a=1", A),
        ("a = 1 or b = 1 and c = 1", Or((A, And((B, C))))),
        ("(a = 1 or b = 1) and c = 1", And((Or((A, B)), C))),
        ("not a = 1 and b = 1", And((Not(A), B))),
        ("not (a = 1 and b = 1)", Not(And((A, B)))),
        ("NOT not ((a=1)) AND b=1 And c=1", And((Not(Not(A)), B, C))),
        ("a != 1", Not(A)),
        ("a in (1)", A),
        ("a in (1, x,'y z')", Or((A, Condition("a", "=", "x"), Condition("a", "=", "y z")))),
        ("a not in (1, 2)", Not(Or((A, Condition("a", "=", 2))))),
        ("a = 12345678901234567890", Condition("a", "=", "12345678901234567890")),  # no float64 holds all digits
        ("not a not in (1)", Not(Not(A))),
        ("a<=-2.50", Condition("a", "<=", -2.5)),
        ("a > +.5e1", Condition("a", ">", 5)),
        ("a >= 1e22", Condition("a", ">=", 1e22)),
        ("a < 9007199254740992", Condition("a", "<", 2**53)),
        ("a = '1'", Condition("a", "=", "1")),
        ("a = 0123", Condition("a", "=", "0123")),  # a column of a CSV file with such a cell is text
        ("a = 1.2.3", Condition("a", "=", "1.2.3")),
        ("a = nan", Condition("a", "=", "nan")),
        ("a = ٣", Condition("a", "=", "٣")),  # not an ASCII digit
        ("a = True or a = false", Or((Condition("a", "=", "True"), Condition("a", "=", "false")))),
        ("a = 'true'", Condition("a", "=", "true")),
        ("id = 007 or product = 1e3", Or((Condition("id", "=", "007"), Condition("product", "=", "1e3")))),
        ("id = true or product != False", Or((Condition("id", "=", "true"), Not(Condition("product", "=", "False"))))),
        ("id in (1, 2)", Or((Condition("id", "=", "1"), Condition("id", "=", "2")))),
        ("a = 'it''s \"so\"'", Condition("a", "=", 'it\'s "so"')),
        ('a = "it\'s ""so"""', Condition("a", "=", 'it\'s "so"')),
        ("a = '' or a = 'and'", Or((Condition("a", "=", ""), Condition("a", "=", "and")))),
        ("Größe = größer and 色='赤 い'", And((Condition("Größe", "=", "größer"), Condition("色", "=", "赤 い")))),
        ("_x1 = a/b-c.jpg\n\tor a = 1 ", Or((Condition("_x1", "=", "a/b-c.jpg"), A))),
        ("order = 1 and notes = 1", And((Condition("order", "=", 1), Condition("notes", "=", 1)))),  # start with keywords
    ],
)
def test_meaning(text: str, tree: Where) -> None:
    assert parse_where(text) == tree
    assert [type(part.value) for part in leaves(parse_where(text))] == [type(part.value) for part in leaves(tree)]


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "got the end instead of a field in ''"),
        (" \n", "got the end instead of a field"),
        ("a", "got the end instead of = or < or"),
        ("a =", "got the end instead of a value"),
        ("a = and", "got 'and' instead of a value"),
        ("a == 1", "got '=' instead of a value"),
        ("a ! 1", "got an unexpected '!'"),
        ("a = 'x", 'got an unexpected "\'"'),
        ("a = x y", "got an unexpected 'y'"),
        ("a = 1)", "got an unexpected ')'"),
        ("(a = 1", "got the end instead of )"),
        ("()", "got ')' instead of a field"),
        ("a = 1 or", "got the end instead of a field"),
        ("not", "got the end instead of a field"),
        ("'a' = 1", "got \"'a'\" instead of a field"),
        ("a in 1", "got '1' instead of ("),
        ("a in ()", "got ')' instead of a value"),
        ("a in (1 2)", "got '2' instead of , or )"),
        ("a not = 1", "got '=' instead of in"),
        ("1a = 1", "a field must be a name of at most 63 letters, digits and underscores, not starting with a digit, got '1a'"),
        ("price-eur = 1", "got 'price-eur'. Rename it."),
        ("a = 'x\0'", "a must be valid text without NUL characters"),
        ("(" * 51 + "a = 1" + ")" * 51, "got more than 50 nested parts"),
        ("not " * 10_000 + "a = 1", "got more than 50 nested parts"),
    ],
)
def test_errors(text: str, got: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+ must [^\n]+, got [^\n]+\. [A-Z][^\n]+\.\Z") as caught:
        parse_where(text)
    assert got in str(caught.value)


def test_nesting_up_to_the_limit() -> None:
    assert parse_where("(" * 49 + "a = 1" + ")" * 49) == A
    assert parse_where(" and ".join(["(a = 1)"] * 60)) == And((A,) * 60)  # side by side is not nested


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53 + 1, None, [1], b"x", "\ud800"])
def test_bad_values(value: object) -> None:
    with pytest.raises(ValueError, match=r"price must be .*, got .*\. (Convert|Remove)"):
        as_value("price", value)


def test_checks() -> None:
    assert (as_value("x", True), str(as_value("x", -0.0)), check_field("é" * 63), check_id("ä" * 500)) == (
        "true",
        "0.0",
        "é" * 63,
        "ä" * 500,
    )
    for name in ("", "é" * 64, "a b", "1", "a;b", "a\n"):
        with pytest.raises(ValueError, match="a field must be a name"):
            check_field(name)
    for name in ("", "ä" * 501, "a\0b"):
        with pytest.raises(ValueError, match=r"an id must be .*\. (Change|Remove)"):
            check_id(name)
    for wrong in (("a') --", "=", 1), ("a", "= 1 or 1", 1)):
        with pytest.raises(ValueError, match="must be"):
            Condition(*wrong)


def leaves(tree: Where) -> list[Condition]:
    match tree:
        case And(parts) | Or(parts):
            return [leaf for part in parts for leaf in leaves(part)]
        case Not(part):
            return leaves(part)
        case Condition():
            return [tree]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["1", "true", "and", "a'b", 'a"b', *INJECTIONS]
)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-2, 2)
VALUES: st.SearchStrategy[Value] = TEXTS | NUMBERS.map(lambda number: as_value("a", number))
FIELDS = ("a", "Größe", "id", "product")


def trees() -> st.SearchStrategy[Where]:
    def leaf(field: str, operator: str, value: Value) -> Where:
        return Condition(field, operator, str(value) if field in ("id", "product") else value)

    leaf_of = st.builds(leaf, st.sampled_from(FIELDS), st.sampled_from(OPERATORS), VALUES)

    def extended(part: st.SearchStrategy[Where]) -> st.SearchStrategy[Where]:
        parts = st.lists(part, min_size=2, max_size=3).map(tuple)
        return parts.map(And) | parts.map(Or) | part.map(Not)

    return st.recursive(leaf_of, extended, max_leaves=8)


def printed(tree: Where, quote: str, bare: bool) -> str:
    """Write a tree as text, with single or double quotes; words without quotes if they can be."""
    match tree:
        case And(parts) | Or(parts):
            return f" {type(tree).__name__.lower()} ".join(f"({printed(part, quote, bare)})" for part in parts)
        case Not(part):
            return f"not ({printed(part, quote, bare)})"
        case Condition(field, operator, str(value)):
            word = re.fullmatch(r"[^\s=<>!(),'\"]+", value) and value.lower() not in KEYWORDS
            if bare and word and number_of(value) is None:
                return f"{field}{operator}{value}"
            return f"{field} {operator} {quote}{value.replace(quote, 2 * quote)}{quote}"
        case Condition(field, operator, value):
            return f"{field} {operator} {value!r}"


@given(tree=trees(), quote=st.sampled_from("'\""), bare=st.booleans(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_printed_tree_parses_back(tree: Where, quote: str, bare: bool, data: st.DataObject) -> None:
    parsed = parse_where(printed(tree, quote, bare))
    known = st.sampled_from([leaf.value for leaf in leaves(tree)])
    for _ in range(5):
        fields = data.draw(st.dictionaries(st.sampled_from(FIELDS), known | VALUES))
        assert matches(parsed, fields) == matches(tree, fields)
    assert leaves(parsed) == leaves(tree)


def test_texts_stay_values(tmp_path: Path) -> None:
    """No text of a value, and no number of values, is taken for SQL."""
    store = open_store(str(tmp_path / "catalog"), create=True)
    store.create(1, 2)
    rows = [Item(f"{i}", text, metadata={"note": text, "place": i}) for i, text in enumerate(INJECTIONS)]
    store.put(1, rows, np.zeros((len(rows), 2), np.float32))
    for i, text in enumerate(INJECTIONS):
        quoted = text.replace("'", "''")
        for field in ("note", "product"):
            assert [item.id for item in store.items(1, parse_where(f"{field} = '{quoted}'"))] == [f"{i}"]
    many = ", ".join(f"{i}" for i in range(1, 5000))
    assert store.count(1, parse_where(f"place in ({many})")) == len(rows) - 1
    assert store.count(1, parse_where(f"id not in ({many})")) == 1
    store.close()
