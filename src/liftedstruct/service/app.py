"""The service: a catalog over HTTP."""

import asyncio
import contextlib
import os
import time
import unicodedata
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from liftedstruct import __version__, report
from liftedstruct.catalog import Catalog, Item
from liftedstruct.catalog.store import Vectors
from liftedstruct.catalog.where import Condition
from liftedstruct.data import ImageError
from liftedstruct.encoding import ImageLike
from liftedstruct.runtime.progress import say
from liftedstruct.service import schemas
from liftedstruct.service.batching import Batcher, Busy
from liftedstruct.service.guard import LOOPBACK, Guard
from liftedstruct.service.photos import MEDIA_TYPES, cropped, etag_of, thumbnail, web_image
from liftedstruct.service.rows import RowsCache

__all__ = ["Service", "create_app"]

T = TypeVar("T")
Key = tuple[int, str | None, str | None, str]  # k, where, group_by and index of a search

SECONDS = 30.0  # that a request may wait
STATIC, MAP = Path(__file__).parent / "static", Path(str(report.__file__)).parent
FORM, JSON, IMAGE = "multipart/form-data", "application/json", {"schema": {"type": "string", "format": "binary"}}
ERRORS: dict[int | str, Any] = {code: {"model": schemas.Problem} for code in (400, 401, 403, 404, 408, 413, 415, 422, 429, 503)}


class Asked(NamedTuple):
    """A search that waits: vector, further arguments of `Catalog.search`, and the id of an item to leave out."""

    vector: Vectors
    key: Key
    without: str | None = None


class Service:
    """A catalog, which must stay open, and the queues to it."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.rows, self.writing = catalog, RowsCache(catalog), asyncio.Lock()
        self.cropping = asyncio.Semaphore(2)  # decoded images in memory, which may be hundreds of megabytes each
        self.ready, self.closed, self.failed = False, False, "is being read"
        self.encoder: Batcher[ImageLike, Vectors] = Batcher("encode", self._encode)
        self.searcher: Batcher[Asked, dict[str, Any]] = Batcher("search", self._search)

    def load(self) -> None:
        """Read the catalog and its model before the first request needs them."""
        try:
            model = self.model()["model"]
            found: list[Any] = [*self._search([Asked(np.zeros(model["dim"], np.float32), (1, None, None, "exact"))])]
            found += self._encode([np.zeros((8, 8, 3), np.uint8)]) if model["sha"] else []
            if error := next((each for each in found if isinstance(each, Exception)), None):
                raise error
            _ = self.rows.current().described_fields
            self.ready = not self.closed
        except Exception as error:  # every request reports it, too
            self.failed = f"cannot be read: {_text_of(error)}"

    def close(self) -> None:
        """Answer what waits, and end the threads."""
        self.ready, self.closed, self.failed = False, True, "is closed"
        self.encoder.close()
        self.searcher.close()

    async def wait(self, queue: Batcher[Any, T], *items: Any) -> list[T]:
        """Return the results for items, or raise TimeoutError."""
        futures = [asyncio.wrap_future(future) for future in queue.submit(items)]
        async with asyncio.timeout(SECONDS):
            return await asyncio.gather(*futures)

    async def write(self, call: Callable[[], T]) -> T:
        """Return the result of a call that changes the catalog, one at a time."""

        def counted() -> T:
            try:
                return call()
            finally:
                self.rows.writes += 1

        async with asyncio.timeout(SECONDS), self.writing:
            return await run_in_threadpool(counted)

    def model(self) -> dict[str, Any]:
        """Return the model that queries and new items must be embedded with, and its table."""
        found: dict[str, Any] = self.catalog.record["current"]
        return found

    def item(self, name: str) -> Item:
        """Return the item with this id."""
        if found := next(self.catalog.items(Condition("id", "=", name)), None):
            return found
        raise HTTPException(404, f"an id must be one of the catalog, got {name[:100]!r}. List them: /items")

    def asked(self, name: str, key: Key) -> Asked:
        """Return the search for the neighbors of an item."""
        try:
            return Asked(self.catalog.vectors([self.item(name)])[0], key, name)
        except KeyError:  # removed in between
            return self.asked(name, key)

    def _encode(self, images: list[ImageLike]) -> list[Vectors | Exception]:
        bad: dict[int, str] = {}
        X = iter(self.catalog.embedder.encode(images, unreadable=bad))
        return [ImageError(bad[i]) if i in bad else next(X) for i in range(len(images))]

    def _search(self, asked: list[Asked]) -> list[dict[str, Any] | Exception]:
        alike: dict[tuple[Key, int], list[int]] = {}
        for i, (vector, key, _) in enumerate(asked):
            alike.setdefault((key, len(vector)), []).append(i)
        found: dict[int, dict[str, Any] | Exception] = {}
        for (key, _), some in alike.items():
            Q, without = np.stack([asked[i].vector for i in some]), [asked[i].without for i in some]
            try:
                answers = self.catalog.search(Q, *key, without)
                threshold = (self.catalog.record.get("calibration") or {}).get("threshold")
            except Exception as error:
                found |= dict.fromkeys(some, error)
                continue
            for i, each in zip(some, answers, strict=True):
                matches = [{"rank": match.rank, "distance": match.distance, **_shown(match)} for match in each.matches]
                verdict = {"margin": each.margin, "verdict": each.verdict, "product": each.product, "threshold": threshold}
                found[i] = {"matches": matches, **verdict}
        return [found[i] for i in range(len(asked))]


def _shown(item: Any) -> dict[str, Any]:
    """Return the fields of an item or a match that a client sees: not the path."""
    there = bool(item.path) and os.path.isfile(item.path)  # noqa: PTH113  # raises no error
    return {"id": item.id, "product": item.product, "metadata": dict(item.metadata), "has_image": there}


# --- requests ------------------------------------------------------------------------------------------------------------


class _InMemory(MultiPartParser):
    """Parser of forms that never writes a file."""

    spool_max_size = 1 << 62


class _Id(Convertor[str]):
    """Path parameter of any characters, also slashes and line ends."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value


register_url_convertor("any", _Id())


def _takes(**models: Any) -> dict[str, Any]:
    """Return the OpenAPI of a body: a form, JSON, or either."""
    content = {{"form": FORM, "json": JSON}[kind]: {"schema": model.model_json_schema()} for kind, model in models.items()}
    return {"requestBody": {"required": True, "content": content}}


async def _body(request: Request, form: Any, json: Any = None) -> Any:
    """Return the checked body of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON and json is not None:
        return json.model_validate_json(await request.body(), strict=True)
    if kind != FORM:
        raise HTTPException(
            415, f"the content type must be {FORM}{f' or {JSON}' if json else ''}, got {kind[:50]!r}. Change it."
        )
    parser, values = _InMemory(request.headers, request.stream(), max_files=schemas.MOST_IMAGES), dict[str, list[Any]]()
    try:
        for name, value in (await parser.parse()).multi_items():
            content = value if isinstance(value, str) else await value.read()
            values[name] = [*values[name], content] if name in values else [content]
    except (MultiPartException, KeyError) as error:
        raise HTTPException(400, f"the body must be a form, got: {getattr(error, 'message', error)}. Correct it.") from error
    finally:
        for file in parser._files_to_close_on_error:  # also of a part that was cut off
            file.close()
    return form.model_validate({name: each if len(each) > 1 or name == "images" else each[0] for name, each in values.items()})


def _key(query: Any) -> Key:
    return query.k, query.where or None, query.group_by or None, query.index


def _as_vector(values: list[float]) -> Vectors:
    with np.errstate(over="ignore"):
        vector = np.array(values, np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("a vector must fit float32, got larger values. Scale it down.")
    return vector


async def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Of = Annotated[Service, Depends(_service)]
Limit = Annotated[int, Query(ge=1, le=1000)]
router = APIRouter()

# --- search --------------------------------------------------------------------------------------------------------------


@router.post("/search", response_model=schemas.Answered, openapi_extra=_takes(form=schemas.FormQuery, json=schemas.JsonQuery))
async def search(request: Request, service: Of) -> Any:
    """Find the items that are nearest to an image, a vector, or an item, which is left out."""
    begin, query = time.perf_counter(), await _body(request, schemas.FormQuery, schemas.JsonQuery)
    if isinstance(query, schemas.JsonQuery):
        if bool(query.id) == bool(query.vector):
            raise ValueError("a query must have an id or a vector, got none or both. Send one of them.")
        wanted = await run_in_threadpool(service.asked, query.id, _key(query)) if query.id else None
        [answer] = await service.wait(service.searcher, wanted or Asked(_as_vector(query.vector), _key(query)))
        return _timed(answer, begin)
    while True:
        model = await run_in_threadpool(service.model)
        async with asyncio.timeout(SECONDS), service.cropping if query.crop else contextlib.nullcontext():
            image = await run_in_threadpool(cropped, query.image, query.crop) if query.crop else query.image
            [vector] = await service.wait(service.encoder, image)
        [answer] = await service.wait(service.searcher, Asked(vector, _key(query)))
        if model == await run_in_threadpool(service.model):  # it was not replaced meanwhile
            return _timed(answer, begin)


@router.get("/neighbors/{id:any}", response_model=schemas.Answered)
async def neighbors(id: str, service: Of, query: Annotated[schemas.QueryOptions, Query()]) -> Any:
    """Find the items that are nearest to an item, which is left out."""
    begin, asked = time.perf_counter(), await run_in_threadpool(service.asked, id, _key(query))
    return _timed((await service.wait(service.searcher, asked))[0], begin)


def _timed(answer: dict[str, Any], begin: float) -> JSONResponse:
    return JSONResponse({**answer, "milliseconds": 1e3 * (time.perf_counter() - begin)})


@router.post("/encode", response_model=schemas.Encoded, openapi_extra=_takes(form=schemas.Images))
async def encode(request: Request, service: Of) -> Any:
    """Embed images with the model of the catalog."""
    vectors = await service.wait(service.encoder, *(await _body(request, schemas.Images)).images)
    return JSONResponse({"vectors": [vector.tolist() for vector in vectors], "dim": len(vectors[0])})


# --- items ---------------------------------------------------------------------------------------------------------------


@router.get("/items", response_model=schemas.ItemsPage)
def items(service: Of, where: str = "", after: Annotated[int, Query(ge=-1, le=2**53)] = -1, limit: Limit = 100) -> Any:
    """List the items that a filter selects, in the order of insertion."""
    found = list(islice(service.catalog.items(where or None, after), limit))
    shown = [{"seq": item.seq, **_shown(item)} for item in found]
    return JSONResponse({"items": shown, "next": found[-1].seq if len(found) == limit else None})


@router.get("/items/{id:any}", response_model=schemas.Shown)
def get_item(id: str, service: Of) -> Any:
    """Return an item."""
    return {"seq": (item := service.item(id)).seq, **_shown(item)}


@router.put(
    "/items/{id:any}", response_model=schemas.Shown, openapi_extra=_takes(form=schemas.NewImage, json=schemas.NewVector)
)
async def put_item(id: str, request: Request, service: Of) -> Any:
    """Add or replace an item, by its image, which is not kept, or its vector. It is answered when it is stored."""
    new = await _body(request, schemas.NewImage, schemas.NewVector)
    model = await run_in_threadpool(service.model)
    [vector] = [_as_vector(new.vector)] if "vector" in new.model_fields_set else await service.wait(service.encoder, new.image)

    def store() -> Any:
        if service.model() != model:
            raise Busy("the model must not change while an item is added, but another process replaced it. Try again.")
        service.catalog.add_vectors([id], vector[None], [new.product], [new.metadata])
        return get_item(id, service)

    return await service.write(store)


@router.delete("/items/{id:any}", response_model=schemas.Deleted)
async def delete_item(id: str, service: Of) -> Any:
    """Remove an item. It is answered when that is stored."""
    await run_in_threadpool(service.item, id)
    return {"removed": await service.write(lambda: service.catalog.remove([id]))}


def _pictures(*types: str) -> Any:
    return {200: {"content": dict.fromkeys(types, IMAGE)}, 304: {"description": "the image has not changed"}}


@router.get("/images/{id:any}", response_class=Response, responses=_pictures(*MEDIA_TYPES.values()))
def image(id: str, request: Request, service: Of) -> Response:
    """Return the image of an item, upright, in a format that browsers show."""
    return _picture(request, service.item(id), 0)


@router.get("/thumbnails/{id:any}", response_class=Response, responses=_pictures("image/webp"))
def small_image(id: str, request: Request, service: Of, size: Annotated[int, Query(ge=16, le=1024)] = 192) -> Response:
    """Return a small image of an item."""
    return _picture(request, service.item(id), size)


def _picture(request: Request, item: Item, size: int) -> Response:
    try:
        if not item.path:
            raise ImageError("was never given")
        headers = {"ETag": etag_of(item.path, size), "Cache-Control": "private, max-age=300"}
        if headers["ETag"] == request.headers.get("if-none-match"):
            return Response(status_code=304, headers=headers)
        content, kind = thumbnail(item.path, size, headers["ETag"]) if size else web_image(item.path)
    except (OSError, ImageError) as error:
        reason = "has moved away" if isinstance(error, FileNotFoundError) else _text_of(error)
        raise HTTPException(
            404, f"the image file of {item.id[:100]!r} must be readable, got: {reason}. Add it again."
        ) from error
    return Response(content, media_type=kind, headers=headers)


# --- the catalog ---------------------------------------------------------------------------------------------------------


@router.get("/health", response_model=dict[str, str])
async def health() -> Any:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get("/ready", response_model=dict[str, str])
async def ready(service: Of) -> Any:
    """Whether the catalog and its model are in memory."""
    if not service.ready:
        raise HTTPException(503, f"the catalog must be in memory, but {service.failed}. Try again later.")
    return {"status": "ready"}


@router.get("/status", response_model=schemas.Status)
def status(request: Request, service: Of) -> Any:
    """What the catalog holds."""
    rows, record, state = service.rows.current(), service.catalog.record, request.app.state
    calibration, products = record.get("calibration"), sum(map(bool, rows.products))
    content = {
        "items": len(rows),
        "products": products,
        "address": service.catalog.address,
        "model": record["current"]["model"],
    }
    learned = {"threshold": (calibration or {}).get("threshold"), "calibration": calibration, "fields": rows.described_fields}
    return {**content, **learned, "explorer": state.explorer, "decisions": state.decisions and str(state.decisions)}


@router.get("/classes", response_model=list[schemas.ProductCount])
def classes(service: Of, q: str = "", limit: Limit = 100) -> Any:
    """List the products whose name contains a text, most frequent first, ignoring case and accents."""
    rows, text = service.rows.current(), _plain(q)
    order = sorted(range(len(rows.products)), key=lambda row: (-rows.sizes[row], row))
    found = (row for row in order if rows.products[row] and text in _plain(rows.products[row]))
    return [{"product": rows.products[row], "count": rows.sizes[row], "row": row} for row in islice(found, limit)]


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
    log: Callable[[str], object] = say,
) -> FastAPI:
    """Return the service of a catalog, an ASGI application.

    Args:
        catalog: catalog, which must stay open.
        token: secret that requests must have.
        hosts: names by which the service may be addressed.
        explorer: also serve the pages of the explorer.
        decisions: CSV file for the decisions of a review.
        log: function that is called with a line for each request.

    """
    service = Service(catalog)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with warnings.catch_warnings(action="ignore"):  # of pillow, about harmless damage
            Thread(target=service.load, name="load", daemon=True).start()
            yield
            await run_in_threadpool(service.close)

    kinds = (RequestValidationError, StarletteHTTPException, Busy, ValueError, OSError)
    pages: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False, "responses": ERRORS}
    secured = [Depends(HTTPBearer(auto_error=False))] if token else []  # in the OpenAPI document; `Guard` checks it
    app = FastAPI(title="liftedstruct", version=__version__, lifespan=lifespan, dependencies=secured, **pages)
    for kind in kinds:
        app.add_exception_handler(kind, _problem)
    app.state.service, app.state.explorer, app.state.decisions = service, explorer, decisions
    app.include_router(router)
    if explorer:
        from liftedstruct.service.review_routes import review_router
        from liftedstruct.service.tiles import map_router

        app.include_router(map_router(service.rows, catalog.folder))
        app.include_router(review_router(service.rows, decisions))
        app.add_api_route("/", lambda: FileResponse(STATIC / "index.html"), include_in_schema=False)
    app.add_api_route("/docs", lambda: FileResponse(STATIC / "docs.html"), include_in_schema=False)
    app.add_api_route("/static/map/{name}", _map_file, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))
    app.add_middleware(Guard, hosts=hosts, token=token, log=log)
    return app


def _map_file(name: str) -> FileResponse:
    """Return a script or style of the map, which the report shares."""
    for file in MAP.glob("map*.[jc]*s"):
        if file.name == name:
            return FileResponse(file)
    raise HTTPException(404, f"a file of the map must exist, got {name[:50]!r}. Correct the address.")


def _text_of(error: Any) -> str:
    """Return the message of an exception, without the path of a file."""
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


async def _problem(_: Request, error: Any) -> JSONResponse:
    """Return the answer for an exception: rule, value and remedy on one line."""
    status, headers = 422, dict[str, str]()
    text = _text_of(error) or f"a request must wait at most {SECONDS:g} seconds, got more. Try again later."
    match error:
        case RequestValidationError() | ValidationError():
            first: Any = error.errors()[0]
            where = ".".join(str(each) for each in first["loc"] if each not in ("query", "path"))
            text = f"{where or 'the body'}: {first['msg'].lower()}, got {ascii(first.get('input'))[:100]}. Correct it."
        case StarletteHTTPException():
            text, status, headers = error.detail, error.status_code, dict(error.headers or {})
        case ImageError():
            status = 413 if text.startswith("too many pixels") else 422
            text = f"an image must be readable, got: {text}. Send another one."
        case Busy():
            status, headers = 429, {"Retry-After": "1"}
        case _ if isinstance(error, OSError) or "one writer at a time" in text:
            status, headers = 503, {"Retry-After": "5"}
    return JSONResponse({"detail": " ".join(text.encode(errors="backslashreplace").decode().split())}, status, headers)
