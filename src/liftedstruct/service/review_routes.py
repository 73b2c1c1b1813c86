"""The review of a catalog over HTTP: ranked lists of what is likely wrong, and the decisions about it."""

import json
import os
import threading
from collections import Counter
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from liftedstruct import review
from liftedstruct.data import Decision, ImageError, MemorySource, add_decisions, read_decisions, undo_decision
from liftedstruct.data.decoding import load_rgb
from liftedstruct.service.rows import Rows, RowsCache

__all__ = ["Review", "review_router"]

PAIRS, OF_CLASSES = ("duplicates", "leaks"), ("one", "two")  # kinds about two images, and about classes
TEST = ("test", "query", "gallery")  # words of the field split
LEAST = 64  # pixels of a side at which an image may be decoded to compare it
Lists = dict[str, dict[str, review.Suggestion]]  # kind -> key -> suggestion


class NewDecision(BaseModel):
    """A decision about a suggestion: what to do, and the class for relabel and merge."""

    model_config = ConfigDict(extra="forbid")
    kind: Annotated[str, Field(max_length=100)]
    key: Annotated[str, Field(max_length=100)]
    action: Literal["keep", "relabel", "drop", "merge"]
    value: Annotated[str, Field(max_length=1000)] = ""


class Review:
    """The lists of a catalog, which a thread computes and keeps until they are asked for again, and the decisions.

    Args:
        cache: items of the catalog.
        path: CSV file of the decisions.

    """

    def __init__(self, cache: RowsCache, path: Path | None) -> None:
        self.cache, self.path, self.lock = cache, path, threading.RLock()
        self.state, self.progress, self.note = "none", 0.0, ""
        self.made: tuple[Rows | None, Lists] = (None, {kind: {} for kind in review.KINDS})  # lists, and the items they are of
        self.keys: dict[str, str] = {}  # time of a decision -> key of its suggestion

    @property
    def file(self) -> Path:
        """The CSV file of the decisions."""
        if self.path is None:
            raise ValueError("decisions must have a file, got none. Start liftedstruct explore with --decisions FILE.")
        return self.path

    def decisions(self) -> list[Decision]:
        """Return the decisions, the latest last."""
        return read_decisions(self.file) if self.file.exists() else []

    def start(self) -> None:
        """Compute the lists, unless that is under way."""
        with self.lock:
            if self.state != "building":
                self.state, self.progress = "building", 0.0
                threading.Thread(target=self._run, name="review", daemon=True).start()

    def _run(self) -> None:
        try:
            rows, lists = self.cache.current(), Lists({kind: {} for kind in review.KINDS})
            for each in self._suggestions(rows):
                key = blake2b(json.dumps(_target(rows, each)).encode(), digest_size=8).hexdigest()
                lists[each.kind][key] = each
            with self.lock:
                self.made, self.state = (rows, lists), "ready"
        except Exception as error:
            self.state, self.note = "failed", " ".join(str(error).split()) or type(error).__name__

    def _suggestions(self, rows: Rows) -> list[review.Suggestion]:
        words = [str(word or "").strip().lower() for word in rows.fields.get("split", [])]
        parts = ["test" if word in TEST else word for word in words] or None
        items = review.Collection(rows.X, rows.labels, rows.products, *rows.neighbors(review.NEIGHBORS), parts)
        found: list[review.Suggestion] = []
        for make in (review.wrong_labels, review.classes_like_one, review.classes_like_two, review.outliers):
            self.progress += 0.1
            found += make(items)

        def look(row: int) -> review.Look | None:
            self.progress = min(1.0, self.progress + 0.6 / len(rows))
            try:
                return review.look_at(load_rgb(MemorySource([rows.paths[row]]), "0", LEAST)) if rows.paths[row] else None
            except (ImageError, OSError):
                return None

        return found + review.duplicates(items, review.near_duplicates(items, look))

    def open(self, kind: str, rows: Rows | None, lists: Lists) -> dict[str, review.Suggestion]:
        """Return the suggestions of a list that nothing was decided about."""
        made = self.decisions() if self.path else []
        kept = {(each.kind, each.id, "" if each.id else each.product, each.value) for each in made if each.action == "keep"}
        dropped, relabeled = ({each.id for each in made if each.action == action} for action in ("drop", "relabel"))
        merged = {each.product for each in made if each.action == "merge"}

        def decided(each: review.Suggestion) -> bool:
            assert rows is not None
            _, name, product, other = target = _target(rows, each)
            if kind in OF_CLASSES:
                split = kind == "two" and any(rows.ids[row] in relabeled for row in each.targets)
                return target in kept or split or bool(merged & {product, other})
            return target in kept or name in dropped | relabeled or (kind in PAIRS and other in dropped)

        return {key: each for key, each in lists[kind].items() if not decided(each)}

    def decide(self, new: NewDecision) -> list[Decision]:
        """Write a decision, and return its lines."""
        rows, lists = self.made
        each = lists.get(new.kind, {}).get(new.key)
        if rows is None or each is None:
            raise HTTPException(404, f"key must be one of the list {new.kind[:20]!r}, got {new.key[:50]!r}. Read it again.")
        if (new.action in ("relabel", "merge")) == (not new.value.strip()):
            raise ValueError(f"value must be a class for relabel and merge only, got {new.value[:100]!r}. Correct it.")
        if new.kind in OF_CLASSES and new.action == "drop":
            raise ValueError("action must be keep, relabel or merge for classes, got 'drop'. Drop single images.")
        value, product = new.value or _target(rows, each)[3], rows.products[rows.labels[each.rows[0]]]
        end = "" if new.action == "drop" else value, new.kind, datetime.now(UTC).isoformat(timespec="microseconds")
        made = [Decision(new.action, "", "", product, *end)]
        if new.action != "merge" and not (new.kind in OF_CLASSES and new.action == "keep"):
            chosen = each.targets if new.kind in OF_CLASSES else each.rows[:1]
            made = [Decision(new.action, rows.paths[i], rows.ids[i], product, *end) for i in chosen]
        with self.lock:
            add_decisions(self.file, made)
            self.keys[made[0].time] = new.key
        return made


def _target(rows: Rows, each: review.Suggestion) -> tuple[str, str, str, str]:
    """Return kind, id, product and the other image or class of a suggestion; a list of classes has no id."""
    if each.kind in OF_CLASSES:
        return each.kind, "", rows.products[rows.labels[each.rows[0]]], each.value if each.kind == "one" else ""
    return each.kind, rows.ids[each.rows[0]], "", rows.ids[each.evidence[0]] if each.kind in PAIRS else ""


def _shown(rows: Rows, key: str, each: review.Suggestion) -> dict[str, Any]:
    def item(i: int) -> dict[str, Any]:
        fields = {name: column[i] for name, column in rows.fields.items() if column[i] is not None}
        found = {"id": rows.ids[i], "product": rows.products[rows.labels[i]], "metadata": fields}
        return found | {"has_image": bool(rows.paths[i]) and os.path.isfile(rows.paths[i])}  # noqa: PTH113  # raises no error

    evidence = [item(i) for i in each.evidence]
    if each.kind not in OF_CLASSES:
        for i, found in zip(each.evidence, evidence, strict=True):
            found["distance"] = float(np.linalg.norm(rows.X[i] - rows.X[each.rows[0]]))
    suggestions = [{"action": each.action, "value": each.value, "images": len(each.targets)}]
    found = {"key": key, "score": each.score, "reason": each.reason, "suggestions": suggestions}
    return found | {"items": [item(i) for i in each.rows], "evidence": evidence}


def review_router(rows: RowsCache, decisions: Path | None) -> APIRouter:
    """Return the endpoints of the review of a catalog; `decisions` is the CSV file that they write."""
    router, found = APIRouter(), Review(rows, decisions)

    @router.get("/review")
    def overview() -> dict[str, Any]:
        """Return the state of the lists and how many suggestions each has."""
        of, lists = found.made
        stale = of is not None and rows.current().version != of.version
        kinds = [
            {"kind": kind, "title": title, "count": len(found.open(kind, of, lists))} for kind, title in review.KINDS.items()
        ]
        return {"state": found.state, "progress": found.progress, "note": found.note, "stale": stale, "kinds": kinds}

    @router.post("/review", status_code=202)
    def start() -> dict[str, Any]:
        """Compute the lists."""
        found.start()
        return overview()

    @router.get("/review/{kind}")
    def suggestions(kind: str, after: str = "", limit: Annotated[int, Query(ge=1, le=500)] = 50) -> dict[str, Any]:
        """Return the suggestions of a list that nothing was decided about, the most likely first."""
        if kind not in review.KINDS:
            raise HTTPException(404, f"kind must be one of {', '.join(review.KINDS)}, got {kind[:50]!r}.")
        of, lists = found.made
        left, keys = found.open(kind, of, lists), list(lists[kind])
        begin = keys.index(after) + 1 if after in keys else 0
        some = [key for key in keys[begin:] if key in left][:limit]
        return {"items": [_shown(of, key, left[key]) for key in some if of], "total": len(left)}

    @router.get("/decisions")
    def listed() -> dict[str, Any]:
        """Return the decisions, the latest last, and the command that uses them."""
        made, path = found.decisions(), str(found.file)
        command = f"liftedstruct prepare DATA --out prepared/ --decisions {path}"
        return {"path": path, "command": command, "counts": Counter(each.action for each in made), "decisions": made[-200:]}

    @router.get("/decisions.csv", response_class=FileResponse)
    def as_file() -> FileResponse:
        """Return the CSV file."""
        if not found.file.exists():
            raise HTTPException(404, "there must be a decision to download the file, but there is none yet. Make one.")
        return FileResponse(found.file, media_type="text/csv", filename=found.file.name)

    @router.post("/decisions", status_code=201)
    def decide(new: NewDecision) -> dict[str, Any]:
        """Append a decision to the file."""
        return {"decisions": found.decide(new)}

    @router.delete("/decisions")
    def undo() -> dict[str, Any]:
        """Remove the last decision from the file."""
        with found.lock:
            removed = undo_decision(found.file)
        if not removed:
            raise HTTPException(404, "there must be a decision to undo it, but there is none left.")
        return {"decisions": removed, "kind": removed[0].kind, "key": found.keys.get(removed[0].time, "")}

    return router
