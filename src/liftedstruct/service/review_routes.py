"""The review of a catalog over HTTP: ranked lists of what is likely wrong, and the decisions about it."""

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict

from liftedstruct.data import Decision, ImageError, MemorySource, add_decisions, read_decisions, undo_decision
from liftedstruct.data.decoding import load_rgb
from liftedstruct.review import (
    KINDS,
    NEIGHBORS,
    Collection,
    Look,
    Suggestion,
    classes_like_one,
    classes_like_two,
    duplicates,
    look_at,
    near_duplicates,
    outliers,
    wrong_labels,
)
from liftedstruct.service.rows import Rows, RowsCache

__all__ = ["Review", "review_router"]

PARTS = {"train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation"}
PARTS |= dict.fromkeys(("test", "query", "gallery"), "test")
PAIRS, OF_CLASSES = ("duplicates", "leaks"), ("one", "two")  # kinds about two images, and about classes
LEAST = 64  # pixels of a side at which an image may be decoded to compare it


class NewDecision(BaseModel):
    """A decision about a suggestion: what to do, and the class for relabel and merge."""

    model_config = ConfigDict(extra="forbid")
    kind: str
    key: str
    action: Literal["keep", "relabel", "drop", "merge"]
    value: str = ""


class Review:
    """The lists of a catalog, which a thread computes and keeps until they are asked for again, and the decisions.

    Args:
        rows: items of the catalog.
        file: CSV file of the decisions.

    """

    def __init__(self, rows: RowsCache, file: Path | None) -> None:
        self.cache, self.path, self.lock = rows, file, threading.RLock()
        self.state, self.progress, self.note = "none", 0.0, ""
        self.rows: Rows | None = None
        self.lists: dict[str, dict[str, Suggestion]] = {kind: {} for kind in KINDS}
        self.keys: dict[str, tuple[str, str]] = {}  # time of a decision -> kind and key of its suggestion

    @property
    def file(self) -> Path:
        """The CSV file of the decisions."""
        if self.path is None:
            raise ValueError("decisions must have a file, got none. Start liftedstruct explore with --decisions FILE.")
        return self.path

    def start(self) -> None:
        """Compute the lists, unless that is under way."""
        with self.lock:
            if self.state != "building":
                self.state, self.progress = "building", 0.0
                threading.Thread(target=self._run, name="review", daemon=True).start()

    def _run(self) -> None:
        try:
            rows = self.cache.current()
            found = self._suggestions(rows)
            lists: dict[str, dict[str, Suggestion]] = {kind: {} for kind in KINDS}
            for each in found:
                text = json.dumps(_target(rows, each)).encode()
                lists[each.kind][blake2b(text, digest_size=8).hexdigest()] = each
            with self.lock:
                self.rows, self.lists, self.state, self.progress = rows, lists, "ready", 1.0
        except Exception as error:
            self.state, self.note = "failed", " ".join(str(error).split()) or type(error).__name__

    def _suggestions(self, rows: Rows) -> list[Suggestion]:
        distances, neighbors = rows.neighbors(NEIGHBORS)
        split = rows.fields.get("split")
        parts = None if split is None else [PARTS.get(str(word).strip().lower(), "") for word in split]
        items = Collection(rows.X, rows.labels, rows.products, distances, neighbors, parts)
        self.progress = 0.3
        found: list[Suggestion] = []
        for make in (wrong_labels, classes_like_one, classes_like_two, outliers):
            found += make(items)
            self.progress += 0.05

        def look(row: int) -> Look | None:
            try:
                return look_at(load_rgb(MemorySource([rows.paths[row]]), "0", LEAST)) if rows.paths[row] else None
            except (ImageError, OSError):
                return None

        def report(done: float) -> None:
            self.progress = 0.5 + 0.5 * done

        return found + duplicates(items, near_duplicates(items, look, report))

    def open(self, kind: str) -> dict[str, Suggestion]:
        """Return the suggestions of a list that nothing was decided about."""
        rows = self.rows
        if rows is None or not self.lists[kind]:
            return {}
        made = read_decisions(self.path) if self.path is not None and self.path.exists() else []
        kept = {(each.kind, each.id, "" if each.id else each.product, each.value) for each in made if each.action == "keep"}
        ids = {action: {each.id for each in made if each.action == action} for action in ("drop", "relabel")}
        merged = {each.product for each in made if each.action == "merge"}

        def decided(each: Suggestion) -> bool:
            _, name, product, other = target = _target(rows, each)
            if target in kept:
                return True
            if kind in OF_CLASSES:
                split = kind == "two" and any(rows.ids[row] in ids["relabel"] for row in each.targets)
                return split or product in merged or (kind == "one" and other in merged)
            return name in ids["drop"] | ids["relabel"] or (kind in PAIRS and other in ids["drop"])

        return {key: each for key, each in self.lists[kind].items() if not decided(each)}

    def decide(self, new: NewDecision) -> list[Decision]:
        """Write a decision, and return its lines."""
        rows, each = self.rows, self.lists.get(new.kind, {}).get(new.key)
        if rows is None or each is None:
            raise HTTPException(
                404, f"key must be one of the list {new.kind[:20]!r}, got {new.key[:50]!r}. Read the list again."
            )
        other = _target(rows, each)[3]
        if (new.action in ("relabel", "merge")) == (not new.value.strip()):
            raise ValueError(
                f"value must be a class for relabel and merge only, got {new.value[:100]!r} for {new.action}. Correct it."
            )
        if new.kind in OF_CLASSES and new.action == "drop":
            raise ValueError("action must be keep, relabel or merge for classes, got 'drop'. Drop single images.")
        time = datetime.now(UTC).isoformat(timespec="microseconds")
        chosen: tuple[int, ...] = each.targets if new.kind in OF_CLASSES else each.rows[:1]
        value, product = new.value or (other if new.action == "keep" else ""), rows.products[rows.labels[each.rows[0]]]
        if new.action == "merge" or (new.kind in OF_CLASSES and new.action == "keep"):
            made = [Decision(new.action, "", "", product, value, new.kind, time)]
        else:
            made = [Decision(new.action, _path(rows, i), rows.ids[i], product, value, new.kind, time) for i in chosen]
        with self.lock:
            add_decisions(self.file, made)
            self.keys[time] = new.kind, new.key
        return made


def _path(rows: Rows, row: int) -> str:
    return str(Path(rows.paths[row]).absolute()) if rows.paths[row] else ""


def _target(rows: Rows, each: Suggestion) -> tuple[str, str, str, str]:
    """Return kind, id, product and the other image or class of a suggestion; a list of classes has no id."""
    name, product = rows.ids[each.rows[0]], rows.products[rows.labels[each.rows[0]]]
    if each.kind in OF_CLASSES:
        return each.kind, "", product, each.value if each.kind == "one" else ""
    return each.kind, name, "", rows.ids[each.evidence[0]] if each.kind in PAIRS else ""


def _item(rows: Rows, row: int, of: int | None = None) -> dict[str, Any]:
    fields = {name: column[row] for name, column in rows.fields.items() if column[row] is not None}
    found = {"id": rows.ids[row], "product": rows.products[rows.labels[row]], "metadata": fields}
    found["has_image"] = bool(rows.paths[row]) and Path(rows.paths[row]).is_file()
    return found if of is None else found | {"distance": float(np.linalg.norm(rows.X[row] - rows.X[of]))}


def _shown(rows: Rows, key: str, each: Suggestion) -> Mapping[str, Any]:
    first = each.rows[0]
    return {
        "key": key,
        "score": each.score,
        "reason": each.reason,
        "items": [_item(rows, row) for row in each.rows],
        "evidence": [_item(rows, row, None if each.kind in OF_CLASSES else first) for row in each.evidence],
        "suggestions": [{"action": each.action, "value": each.value, "images": len(each.targets)}],
    }


def review_router(rows: RowsCache, decisions: Path | None) -> APIRouter:
    """Return the endpoints of the review of a catalog; `decisions` is the CSV file that they write."""
    router, review = APIRouter(), Review(rows, decisions)

    @router.get("/review")
    def overview() -> dict[str, Any]:
        """Return the state of the lists and how many suggestions each has."""
        ready = review.state == "ready" and review.rows is not None
        stale = ready and review.rows is not None and rows.current().version != review.rows.version
        kinds = [{"kind": kind, "title": title, "count": len(review.open(kind))} for kind, title in KINDS.items()]
        return {"state": review.state, "progress": review.progress, "note": review.note, "stale": stale, "kinds": kinds}

    @router.post("/review", status_code=202)
    def start() -> dict[str, Any]:
        """Compute the lists."""
        review.start()
        return overview()

    @router.get("/review/{kind}")
    def suggestions(kind: str, after: str = "", limit: Annotated[int, Query(ge=1, le=500)] = 50) -> dict[str, Any]:
        """Return the suggestions of a list that nothing was decided about, the most likely first."""
        if kind not in KINDS:
            raise HTTPException(404, f"kind must be one of {', '.join(KINDS)}, got {kind[:50]!r}.")
        found, keys = review.open(kind), list(review.lists[kind])
        begin = keys.index(after) + 1 if after in keys else 0
        some = [key for key in keys[begin:] if key in found][:limit]
        items = [_shown(review.rows, key, found[key]) for key in some if review.rows is not None]
        return {"items": items, "total": len(found)}

    @router.get("/decisions")
    def listed() -> dict[str, Any]:
        """Return the decisions, the latest last, and the command that uses them."""
        file = review.file
        made = read_decisions(file) if file.exists() else []
        command = f"liftedstruct prepare DATA --out prepared/ --decisions {file}"
        counts = {action: sum(each.action == action for each in made) for action in dict.fromkeys(each.action for each in made)}
        return {"path": str(file), "command": command, "counts": counts, "decisions": [asdict(each) for each in made[-200:]]}

    @router.get("/decisions.csv", response_class=FileResponse)
    def as_file() -> FileResponse:
        """Return the CSV file."""
        if not review.file.exists():
            raise HTTPException(404, "there must be a decision to download the file, but there is none yet. Make one.")
        return FileResponse(review.file, media_type="text/csv", filename=review.file.name)

    @router.post("/decisions", status_code=201)
    def decide(new: NewDecision) -> dict[str, Any]:
        """Append a decision to the file."""
        return {"decisions": [asdict(each) for each in review.decide(new)]}

    @router.delete("/decisions")
    def undo() -> dict[str, Any]:
        """Remove the last decision from the file."""
        with review.lock:
            removed = undo_decision(review.file)
        if not removed:
            raise HTTPException(404, "there must be a decision to undo it, but there is none left.")
        kind, key = review.keys.get(removed[-1].time, (removed[-1].kind, ""))
        return {"decisions": [asdict(each) for each in removed], "kind": kind, "key": key}

    return router
