"""What the service receives and answers, as its OpenAPI document describes it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

__all__ = [
    "Answered",
    "Class",
    "Deleted",
    "Encoded",
    "FormQuery",
    "IdQuery",
    "ItemsPage",
    "NewItem",
    "Problem",
    "Shown",
    "Status",
]
__all__ += ["MOST_IMAGES", "MOST_MATCHES", "MOST_ROWS", "VectorQuery"]

MOST_IMAGES, MOST_MATCHES, MOST_ROWS = 64, 1000, 1000  # per request
Number = Annotated[float, Field(allow_inf_nan=False)]


class Problem(TypedDict):
    """An error: rule, value and remedy on one line."""

    detail: str


class Query(BaseModel):
    """What is searched for."""

    model_config = ConfigDict(extra="forbid")
    k: Annotated[int, Field(ge=1, le=MOST_MATCHES)] = 10
    where: str = ""
    group_by: str = ""
    index: str = "exact"

    @property
    def key(self) -> tuple[int, str | None, str | None, str]:
        """The arguments of `Catalog.search`; queries with equal ones are one call."""
        return self.k, self.where or None, self.group_by or None, self.index


class VectorQuery(Query):
    """Search by an embedding."""

    vector: Annotated[list[Number], Field(min_length=1)]


class IdQuery(Query):
    """Search by an item, which is left out of its own answer."""

    id: str


class FormQuery(Query):
    """Search by an image, sent as the file `image`; `crop` is the part of it to search for: x,y,width,height in fractions."""

    crop: str = ""


class NewItem(BaseModel):
    """An item without its image, or without its vector."""

    model_config = ConfigDict(extra="forbid")
    vector: Annotated[list[Number] | None, Field(min_length=1)] = None
    product: str = ""
    metadata: dict[str, str | Number] = {}


class Shown(TypedDict):
    """An item."""

    seq: int
    id: str
    product: str
    metadata: dict[str, Any]
    has_image: bool


class Matched(TypedDict):
    """An item that is near the query."""

    rank: int
    distance: float
    id: str
    product: str
    metadata: dict[str, Any]
    has_image: bool


class Answered(TypedDict):
    """What a search found, nearest first."""

    matches: list[Matched]
    margin: float | None
    verdict: str | None
    product: str | None
    threshold: float | None
    milliseconds: float


class Encoded(TypedDict):
    """An embedding for each image."""

    vectors: list[list[float]]
    dim: int


class ItemsPage(TypedDict):
    """Items in the order of insertion, and what `after` must be for the next ones."""

    items: list[Shown]
    next: int | None


class Deleted(TypedDict):
    """The number of items that were removed."""

    removed: int


class Class(TypedDict):
    """A product, its number of items, and its number among the sorted names."""

    product: str
    count: int
    row: int


class Status(TypedDict):
    """What the catalog holds."""

    items: int
    products: int
    address: str
    model: dict[str, Any]
    threshold: float | None
    calibration: dict[str, Any] | None
    fields: list[dict[str, Any]]
    explorer: bool
    decisions: str | None
