"""What the service receives and answers, as its OpenAPI document describes it."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, Json, create_model

__all__ = ["MOST_IMAGES", "Answered", "Deleted", "Encoded", "FormQuery", "Images", "ItemsPage", "JsonQuery", "NewImage"]
__all__ += ["NewVector", "Problem", "ProductCount", "QueryOptions", "Shown", "Status"]

MOST_IMAGES = 64
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=1 << 16)]
Metadata = dict[str, str | int | Number]
CLOSED = ConfigDict(extra="forbid")
EITHER = ConfigDict(extra="forbid", json_schema_extra={"oneOf": [{"required": ["vector"]}, {"required": ["id"]}]})

# --- received ------------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "k": (Annotated[int, Field(ge=1, le=1000, description="number of matches")], 10),
    "where": (Annotated[str, Field(description="filter, such as: category = chair and price < 100")], ""),
    "group_by": (Annotated[str, Field(description="field whose values count once, such as product")], ""),
    "index": (Annotated[str, Field(description="exact, or an approximate index of the store")], "exact"),
}
CROP = Annotated[str, Field(description="x,y,width,height of the part to search for, in fractions of the image")]
QueryOptions: Any = create_model("QueryOptions", __config__=CLOSED, **OPTIONS)
FormQuery: Any = create_model("FormQuery", __config__=CLOSED, image=bytes, crop=(CROP, ""), **OPTIONS)
JsonQuery: Any = create_model("JsonQuery", __config__=EITHER, vector=(Vector, []), id=(str, ""), **OPTIONS)
Images: Any = create_model(
    "Images", __config__=CLOSED, images=Annotated[list[bytes], Field(min_length=1, max_length=MOST_IMAGES)]
)
NewImage: Any = create_model("NewImage", __config__=CLOSED, image=bytes, product=(str, ""), metadata=(Json[Metadata], {}))
NewVector: Any = create_model("NewVector", __config__=CLOSED, vector=Vector, product=(str, ""), metadata=(Metadata, {}))

# --- answered ------------------------------------------------------------------------------------------------------------

ITEM: dict[str, Any] = {"id": str, "product": str, "metadata": dict[str, Any], "has_image": bool}
Shown: Any = create_model("Shown", seq=int, **ITEM)
ItemsPage: Any = create_model("ItemsPage", items=list[Shown], next=int | None)
Matched: Any = create_model("Matched", rank=int, distance=float, **ITEM)
VERDICT: dict[str, Any] = {"margin": float | None, "verdict": str | None, "product": str | None, "threshold": float | None}
Answered: Any = create_model("Answered", matches=list[Matched], **VERDICT, milliseconds=float)
Encoded: Any = create_model("Encoded", vectors=list[list[float]], dim=int)
Deleted: Any = create_model("Deleted", removed=int)
ProductCount: Any = create_model("ProductCount", product=str, count=int, row=int)
Model: Any = create_model("Model", name=str, dim=int, sha=str)
Described: Any = create_model("Described", name=str, kind=str, min=float | None, max=float | None, values=list[str | float])
CONTENT: dict[str, Any] = {"items": int, "products": int, "address": str, "model": Model, "threshold": float | None}
PAGES: dict[str, Any] = {
    "calibration": dict[str, Any] | None,
    "fields": list[Described],
    "explorer": bool,
    "decisions": str | None,
}
Status: Any = create_model("Status", **CONTENT, **PAGES)
Problem: Any = create_model("Problem", detail=Annotated[str, Field(description="rule, value and remedy, on one line")])
