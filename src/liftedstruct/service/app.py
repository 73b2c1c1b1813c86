"""The service: a catalog over HTTP."""

import asyncio
import contextlib
import inspect
import json
import threading
import time
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

import liftedstruct.report
from liftedstruct import __version__
from liftedstruct.catalog import Catalog, Item
from liftedstruct.catalog.store import Vectors
from liftedstruct.catalog.where import Condition
from liftedstruct.data import ImageError
from liftedstruct.encoding import ImageLike
from liftedstruct.runtime.progress import say
from liftedstruct.service.batching import Batcher, Busy
from liftedstruct.service.guard import LOOPBACK, Guard
from liftedstruct.service.photos import MEDIA_TYPES, cropped, etag_of, thumbnail, web_image
from liftedstruct.service.rows import RowsCache
from liftedstruct.service.schemas import (
    MOST_IMAGES,
    MOST_ROWS,
    Answered,
    Class,
    Deleted,
    Encoded,
    FormQuery,
    IdQuery,
    ItemsPage,
    NewItem,
    Problem,
    Shown,
    Status,
    VectorQuery,
)

__all__ = ["Service", "create_app"]

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

STATIC = Path(__file__).parent / "static"
MAP = Path(inspect.getfile(liftedstruct.report)).parent
FORM, JSON = "multipart/form-data", "application/json"
FIELD_BYTES = 1 << 20
ERRORS = {
    400: "The request cannot be read.",
    401: "The token is missing.",
    403: "Host or Origin is not this server.",
    404: "There is no such item.",
    408: "The body did not arrive in time.",
    413: "The body or the image is too large.",
    415: "The media type is not accepted.",
    422: "A value is not accepted.",
    429: "Too many requests are waiting.",
    503: "The request took too long, or the catalog is in use by another writer.",
}


class Asked(NamedTuple):
    """A search that waits: vector, arguments of `Catalog.search`, and the id that is left out."""

    vector: Vectors
    key: tuple[int, str | None, str | None, str]
    without: str | None = None


class Service:
    """A catalog, and the queues to it.

    Args:
        catalog: catalog to serve. It remains open.
        seconds: limit of the time that a request waits.
        room: requests that may wait in each queue.

    """

    def __init__(self, catalog: Catalog, seconds: float = 30.0, room: int = 256) -> None:
        self.catalog, self.seconds, self.rows, self.ready = catalog, seconds, RowsCache(catalog), False
        self.encoder: Batcher[ImageLike, Vectors] = Batcher("encode", self._encode, MOST_IMAGES, room)
        self.searcher: Batcher[Asked, dict[str, Any]] = Batcher("search", self._search, room=room)
        self.writer: Batcher[Callable[[], Any], Any] = Batcher("write", self._write, room=room)

    def load(self) -> None:
        """Read the catalog and its model before the first request needs them."""
        with contextlib.suppress(ValueError, OSError):  # the requests report it
            model = self.catalog.record["current"]["model"]
            self._search([Asked(np.zeros(model["dim"], np.float32), (1, None, None, "exact"))])
            _ = self.rows.current().described_fields
            if model["sha"]:
                self._encode([np.zeros((8, 8, 3), np.uint8)])
        self.ready = True

    def close(self) -> None:
        """Answer what waits, and end the threads."""
        self.ready = False
        for queue in (self.encoder, self.searcher, self.writer):
            queue.close()

    async def wait(self, queue: Batcher[Any, T], items: Sequence[Any]) -> list[T]:
        """Return the results for items, or raise TimeoutError."""
        futures = queue.submit(items)
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.gather(*map(asyncio.wrap_future, futures))
        except TimeoutError:
            raise TimeoutError(f"{queue.name} must take at most {self.seconds:g} seconds, got more. Try again later.") from None

    async def search_image(self, image: ImageLike, key: tuple[int, str | None, str | None, str]) -> dict[str, Any]:
        """Return the answer for an image; again, if the model of the catalog was replaced in between."""
        while True:
            before = await run_in_threadpool(lambda: self.catalog.record["current"])
            [vector] = await self.wait(self.encoder, [image])
            [answer] = await self.wait(self.searcher, [Asked(vector, key)])
            if before == await run_in_threadpool(lambda: self.catalog.record["current"]):
                return answer

    def item(self, name: str) -> Item:
        """Return the item with this id."""
        found = next(self.catalog.items(Condition("id", "=", name)), None)
        if found is None:
            raise HTTPException(404, f"an id must be one of the catalog, got {name[:100]!r}. List them: /items")
        return found

    def asked(self, name: str, key: tuple[int, str | None, str | None, str]) -> Asked:
        """Return the search for the neighbors of an item."""
        item = self.item(name)
        return Asked(self.catalog.vectors([item])[0], key, name)

    def _encode(self, images: list[ImageLike]) -> list[Vectors | Exception]:
        bad: dict[int, str] = {}
        X = iter(self.catalog.embedder.encode(images, unreadable=bad))
        return [ImageError(bad[i]) if i in bad else next(X) for i in range(len(images))]

    def _search(self, asked: list[Asked]) -> list[dict[str, Any] | Exception]:
        alike = defaultdict[Any, list[int]](list)
        for i, each in enumerate(asked):
            alike[len(each.vector), each.key].append(i)
        found: dict[int, dict[str, Any] | Exception] = {}
        for (_, key), some in alike.items():
            try:
                Q, without = np.stack([asked[i].vector for i in some]), [asked[i].without for i in some]
                answers = self.catalog.search(Q, *key, without=without)
                threshold = (self.catalog.record.get("calibration") or {}).get("threshold")
            except Exception as error:
                found |= dict.fromkeys(some, error)
                continue
            for i, answer in zip(some, answers, strict=True):
                matches = [{"rank": match.rank, "distance": match.distance} | _shown(match) for match in answer.matches]
                found[i] = {"matches": matches, "margin": answer.margin, "verdict": answer.verdict, "product": answer.product}
                found[i] |= {"threshold": threshold}  # type: ignore[operator]
        return [found[i] for i in range(len(asked))]

    def _write(self, calls: list[Callable[[], Any]]) -> list[Any]:
        results = []
        for call in calls:  # each is stored, and answered, by itself
            try:
                results.append(call())
            except Exception as error:
                results.append(error)
        self.rows.writes += len(calls)
        return results


def _shown(item: Any) -> dict[str, Any]:
    """Return the fields of an item or a match that a client sees: not the path."""
    fields = {"id": item.id, "product": item.product, "metadata": dict(item.metadata)}
    return fields | {"has_image": bool(item.path) and Path(item.path).is_file()}


def _with_seq(item: Item) -> dict[str, Any]:
    return {"seq": item.seq, **_shown(item)}


# --- requests ------------------------------------------------------------------------------------------------------------


class _Memory(MultiPartParser):
    """Parser of forms that never writes a file."""

    spool_max_size = 1 << 62


class _Id(Convertor[str]):
    """Path parameter of any characters, also slashes and line ends."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value


register_url_convertor("any", _Id())


async def _body(request: Request, *kinds: str) -> tuple[dict[str, Any], list[bytes]]:
    """Return the fields and the files of a form or a JSON object."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise HTTPException(415, f"the content type must be {' or '.join(kinds)}, got {kind[:50]!r}. Send one of them.")
    try:
        if kind == JSON:
            found = from_json(await request.body())
            if not isinstance(found, dict):
                raise HTTPException(422, "the body must be a JSON object, got another value. Send one.")
            return found, []
        form = await _Memory(request.headers, request.stream(), max_files=MOST_IMAGES, max_part_size=FIELD_BYTES).parse()
    except (MultiPartException, ValueError, KeyError) as error:
        text = " ".join(str(getattr(error, "message", error)).split())
        raise HTTPException(400, f"the body must be valid {kind}, got: {text[:200]}. Correct it.") from error
    fields: dict[str, Any] = {}
    files: list[bytes] = []
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields[name] = value
        elif name in ("image", "images"):
            files.append(await value.read())
    return fields, files


def _checked(model: type[M], values: dict[str, Any], strict: bool) -> M:
    try:
        return model.model_validate(values, strict=strict)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _single(files: list[bytes]) -> bytes:
    if len(files) != 1:
        raise HTTPException(422, f"image must be a single file, got {len(files)}. Send one.")
    return files[0]


def _as_vector(values: list[float]) -> Vectors:
    with np.errstate(over="ignore"):
        vector = np.array(values, np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("vector must fit float32, got larger values. Scale them down.")
    return vector


def _content(**schemas: Any) -> dict[str, Any]:
    """Return the OpenAPI of a request body: a form with files, JSON, or both."""
    types = {"form": FORM, "json": JSON}
    return {"requestBody": {"required": True, "content": {types[kind]: {"schema": each} for kind, each in schemas.items()}}}


def _form(model: type[BaseModel] | None, **files: Any) -> dict[str, Any]:
    schema: dict[str, Any] = (
        {"type": "object", "additionalProperties": False, "properties": {}} if model is None else (model.model_json_schema())
    )
    schema["properties"] = files | {name: each for name, each in schema["properties"].items() if name != "vector"}
    return schema | {"required": list(files)}


def _files(**limits: int) -> dict[str, Any]:
    return {"type": "array", "items": FILE, **limits}


FILE = {"type": "string", "format": "binary"}
NAMES = {"type": "string", "description": "a JSON object", "default": "{}"}


# --- endpoints -----------------------------------------------------------------------------------------------------------


async def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Of = Annotated[Service, Depends(_service)]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]
router = APIRouter()


@router.get("/health", response_model=dict[str, str])
async def health() -> Any:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get("/ready", response_model=dict[str, str])
async def ready(service: Of) -> Any:
    """Whether the catalog and its model are in memory."""
    if not service.ready:
        raise HTTPException(503, "the catalog must be read before it can be searched, and is not yet. Try again later.")
    return {"status": "ready"}


@router.get("/status", response_model=Status)
def status(request: Request, service: Of) -> Any:
    """What the catalog holds."""
    record, rows, state = service.catalog.record, service.rows.current(), request.app.state
    model, calibration = record["current"]["model"], record.get("calibration")
    return {
        "items": len(rows),
        "products": sum(bool(name) for name in rows.products),
        "address": service.catalog.address,
        "model": {name: model[name] for name in ("name", "dim", "sha")},
        "threshold": (calibration or {}).get("threshold"),
        "calibration": calibration,
        "fields": rows.described_fields,
        "explorer": state.explorer,
        "decisions": None if state.decisions is None else str(state.decisions),
    }


BY_IMAGE = _form(FormQuery, image=FILE)
ANY_QUERY = {"anyOf": [VectorQuery.model_json_schema(), IdQuery.model_json_schema()]}


@router.post("/search", response_model=Answered, openapi_extra=_content(form=BY_IMAGE, json=ANY_QUERY))
async def search(request: Request, service: Of) -> Any:
    """Find the items that are nearest to an image, a vector or an item."""
    begin = time.perf_counter()
    fields, files = await _body(request, FORM, JSON)
    if request.headers["content-type"].lower().startswith(FORM):
        query = _checked(FormQuery, fields, strict=False)
        content: ImageLike = _single(files)
        if query.crop:
            content = await run_in_threadpool(cropped, _single(files), query.crop)
        answer = await service.search_image(content, query.key)
    else:
        if "id" in fields:
            by_id = _checked(IdQuery, fields, strict=True)
            asked = await run_in_threadpool(service.asked, by_id.id, by_id.key)
        else:
            by_vector = _checked(VectorQuery, fields, strict=True)
            asked = Asked(_as_vector(by_vector.vector), by_vector.key)
        [answer] = await service.wait(service.searcher, [asked])
    return JSONResponse(answer | {"milliseconds": 1e3 * (time.perf_counter() - begin)})


@router.get("/neighbors/{id:any}", response_model=Answered)
async def neighbors(id: str, service: Of, query: Annotated[FormQuery, Query()]) -> Any:
    """Find the items that are nearest to an item."""
    begin = time.perf_counter()
    asked = await run_in_threadpool(service.asked, id, query.key)
    [answer] = await service.wait(service.searcher, [asked])
    return JSONResponse(answer | {"milliseconds": 1e3 * (time.perf_counter() - begin)})


@router.post(
    "/encode", response_model=Encoded, openapi_extra=_content(form=_form(None, images=_files(minItems=1, maxItems=MOST_IMAGES)))
)
async def encode(request: Request, service: Of) -> Any:
    """Embed images with the model of the catalog."""
    _, files = await _body(request, FORM)
    if not files:
        raise HTTPException(422, f"images must be 1 to {MOST_IMAGES} files, got none. Send them as a form.")
    vectors = await service.wait(service.encoder, files)
    return JSONResponse({"vectors": [vector.tolist() for vector in vectors], "dim": len(vectors[0])})


@router.get("/items", response_model=ItemsPage)
def items(service: Of, where: str = "", after: Annotated[int, Query(ge=-1, le=2**53)] = -1, limit: Limit = 100) -> Any:
    """List the items that a filter selects, in the order of insertion."""
    found = list(_first(service.catalog.items(where or None, after), limit))
    return JSONResponse({"items": list(map(_with_seq, found)), "next": found[-1].seq if len(found) == limit else None})


def _first(items: Any, limit: int) -> Any:
    return (item for item, _ in zip(items, range(limit), strict=False))


@router.get("/items/{id:any}", response_model=Shown)
def get_item(id: str, service: Of) -> Any:
    """Return an item."""
    return JSONResponse(_with_seq(service.item(id)))


NEW = NewItem.model_json_schema()
NEW_FORM = _form(NewItem, image=FILE)
NEW_FORM["properties"]["metadata"] = NAMES


@router.put("/items/{id:any}", response_model=Shown, openapi_extra=_content(form=NEW_FORM, json=NEW | {"required": ["vector"]}))
async def put_item(id: str, request: Request, service: Of) -> Any:
    """Add an item, or replace it, by its image or its vector. It is answered when it is stored; the image is not kept."""
    fields, files = await _body(request, FORM, JSON)
    form = request.headers["content-type"].lower().startswith(FORM)
    if form and "metadata" in fields:
        try:
            fields["metadata"] = json.loads(fields["metadata"])
        except (ValueError, RecursionError) as error:
            raise HTTPException(422, f"metadata must be a JSON object, got {fields['metadata'][:50]!r}. Correct it.") from error
    new = _checked(NewItem, fields, strict=not form)
    if (new.vector is None) != form:
        raise HTTPException(422, "an item must have an image or a vector, got neither or both. Send one of them.")
    [vector] = [_as_vector(new.vector)] if new.vector is not None else await service.wait(service.encoder, [_single(files)])

    def store() -> dict[str, Any]:
        service.catalog.add_vectors([id], vector[None], [new.product], [new.metadata])
        return _with_seq(service.item(id))

    [item] = await service.wait(service.writer, [store])
    return JSONResponse(item)


@router.delete("/items/{id:any}", response_model=Deleted)
async def delete_item(id: str, service: Of) -> Any:
    """Remove an item. It is answered when that is stored."""
    [removed] = await service.wait(service.writer, [lambda: service.catalog.remove([id])])
    if not removed:
        raise HTTPException(404, f"an id must be one of the catalog, got {id[:100]!r}. List them: /items")
    return JSONResponse({"removed": removed})


def _image_types(*types: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {each: {"schema": FILE} for each in types}}, 304: {"description": "It has not changed."}}


@router.get("/images/{id:any}", response_class=Response, responses=_image_types(*MEDIA_TYPES.values()))
def image(id: str, request: Request, service: Of) -> Response:
    """Return the image of an item, upright, in a format that browsers show."""
    return _picture(request, service.item(id), 0, lambda path, _: web_image(path))


@router.get("/thumbnails/{id:any}", response_class=Response, responses=_image_types("image/webp"))
def small_image(id: str, request: Request, service: Of, size: Annotated[int, Query(ge=16, le=1024)] = 192) -> Response:
    """Return a small image of an item."""
    return _picture(request, service.item(id), size, lambda path, etag: (thumbnail(path, size, etag), "image/webp"))


def _picture(request: Request, item: Item, size: int, read: Callable[[str, str], tuple[bytes, str]]) -> Response:
    if not item.path:
        raise HTTPException(404, f"{item.id[:100]!r} must have an image file to show it, but was added without one.")
    try:
        headers = {"ETag": etag_of(item.path, size), "Cache-Control": "private, max-age=300"}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content, kind = read(item.path, headers["ETag"])
    except (OSError, ImageError) as error:
        reason = "has moved away" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise HTTPException(404, f"the image file of {item.id[:100]!r} {reason}. Put it back, or add it again.") from error
    return Response(content, media_type=kind, headers=headers)


@router.get("/classes", response_model=list[Class])
def classes(service: Of, q: str = "", limit: Limit = 100) -> Any:
    """List the products whose name contains a text, most frequent first, ignoring case and accents."""
    rows, wanted = service.rows.current(), _plain(q)
    order = sorted(range(len(rows.products)), key=lambda row: (-rows.sizes[row], row))
    found = (row for row in order if rows.products[row] and wanted in _plain(rows.products[row]))
    return [{"product": rows.products[row], "count": int(rows.sizes[row]), "row": row} for row in _first(found, limit)]


def _plain(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each)).casefold()


# --- the application -----------------------------------------------------------------------------------------------------


def create_app(
    catalog: Catalog,
    *,
    token: str | None = None,
    hosts: Sequence[str] = LOOPBACK,
    explorer: bool = False,
    decisions: Path | None = None,
    upload_bytes: int = 1 << 25,
    seconds: float = 30.0,
    room: int = 256,
    log: Callable[[str], object] = say,
) -> FastAPI:
    """Return the service of a catalog, an ASGI application.

    Args:
        catalog: catalog, which must stay open.
        token: secret that requests must have.
        hosts: names by which the service may be addressed.
        explorer: also serve the pages of the explorer.
        decisions: CSV file for the decisions of a review.
        upload_bytes: limit of a request's body.
        seconds: limit of the time that a request waits.
        room: requests that may wait in each queue.
        log: function that is called with a line for each request.

    """
    service = Service(catalog, seconds, room)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with warnings.catch_warnings(action="ignore"):  # pillow has many, of harmless damage
            threading.Thread(target=service.load, name="load", daemon=True).start()
            yield
            await run_in_threadpool(service.close)

    app = FastAPI(
        title="liftedstruct",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={code: {"model": Problem, "description": text} for code, text in ERRORS.items()},
        dependencies=[] if token is None else [Depends(HTTPBearer(auto_error=False))],
    )
    app.state.service, app.state.explorer, app.state.decisions = service, explorer, decisions
    app.include_router(router)
    if explorer:
        with contextlib.suppress(ModuleNotFoundError):
            from liftedstruct.service.tiles import map_router

            app.include_router(map_router(service.rows, catalog.folder))
        with contextlib.suppress(ModuleNotFoundError):
            from liftedstruct.service.review_routes import review_router

            app.include_router(review_router(service.rows, decisions))
    _add_pages(app, explorer)
    _add_errors(app)
    app.add_middleware(Guard, hosts=hosts, token=token, upload_bytes=upload_bytes, log=log)
    return app


def _add_pages(app: FastAPI, explorer: bool) -> None:
    pages = {"/docs": "docs.html"} | ({"/": "index.html"} if explorer else {})
    for path, name in pages.items():
        app.add_api_route(path, lambda name=name: FileResponse(STATIC / name), include_in_schema=False)

    @app.get("/static/map/{name}", include_in_schema=False)
    def map_file(name: str) -> FileResponse:
        """Return a module of the map, which the report shares."""
        if name not in {file.name for file in MAP.glob("map*") if file.suffix in (".js", ".css")}:
            raise HTTPException(404, f"there must be a file of the map to read it, got {name[:50]!r}.")
        return FileResponse(MAP / name)

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))


def _add_errors(app: FastAPI) -> None:
    def problem(status: int, text: str, headers: Any = None) -> JSONResponse:
        line = " ".join(text.encode(errors="backslashreplace").decode().split())
        return JSONResponse({"detail": line}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = ".".join(str(each) for each in first["loc"] if each not in ("query", "path"))
        rule = first["msg"][0].lower() + first["msg"][1:]
        return problem(422, f"{name}: {rule}, got {ascii(first.get('input'))[:100]}. Correct it.")

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return problem(error.status_code, error.detail, error.headers)

    @app.exception_handler(ImageError)
    async def unreadable(_: Request, error: ImageError) -> JSONResponse:
        large = str(error).startswith("too many pixels")
        return problem(413 if large else 422, f"an image must be readable, got: {error}. Send another one.")

    @app.exception_handler(ValueError)
    async def wrong(_: Request, error: ValueError) -> JSONResponse:
        in_use = "by one writer at a time" in str(error)
        return problem(503 if in_use else 422, str(error), {"Retry-After": "5"} if in_use else None)

    @app.exception_handler(OSError)
    async def failed(_: Request, error: OSError) -> JSONResponse:
        return problem(503, str(error), {"Retry-After": "5"})

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return problem(429, str(error), {"Retry-After": "1"})
