"""A catalog survives kills, full disks, a second writer and damaged files, and takes any file as a query."""

import itertools
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import liftedstruct as ls
from catalog.shop import catalog_of
from faults import DAMAGES, damaged, fill, finish, run, small_disk, start
from liftedstruct.catalog import Catalog, adding, local
from liftedstruct.catalog.calibration import calibrate
from liftedstruct.catalog.local import LOCK, LocalStore
from liftedstruct.cli import main
from liftedstruct.embedder import Embedder
from liftedstruct.trunks import make_trunk

N, PRODUCT = 800, 8  # images, and images of a product; a few chunks
Content = list[Any]


def picture(seed: int, width: int = 24, height: int = 24) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height))


def write_csv(folder: Path, numbers: list[int], prices: int = 1) -> Path:
    """Write a list of images with prices, `prices` times their numbers for every third image."""
    rows = [f"{i}.png,p{i // PRODUCT},{i * (prices if i % 3 == 0 else 1)},{'red' if i % 2 else 'blue'}" for i in numbers]
    (folder / "list.csv").write_text("\n".join(["path,product,price,color", *rows]))
    return folder / "list.csv"


def content(address: Path) -> Content:
    """Return all that a catalog holds, in order, and answers of it."""
    with Catalog.open(address) as catalog:
        items = list(catalog.items())
        X = catalog.vectors(items)
        rows: Content = [
            (i.id, i.product, i.path, i.content, dict(i.metadata), x.tobytes()) for i, x in zip(items, X, strict=True)
        ]
        answers = catalog.search(X[::100], 5) + catalog.search(X[:3], 5, "price > 300 and color = red", "product")
        return [*rows, answers, catalog.count("color = blue"), catalog.record["fields"]]


def one_line(text: str) -> bool:
    return text.strip().count("\n") == 0 and "Traceback" not in text and bool(text.strip())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Save two models of the same dimension, with random weights."""
    root = tmp_path_factory.mktemp("models")
    for seed in range(2):
        torch.manual_seed(seed)
        (root / str(seed)).mkdir()
        trunk = make_trunk("small", pretrained=False)
        Embedder(trunk, 8, normalize=True, crop=32, size=40).eval().save(root / str(seed))
    return root / "0", root / "1"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(N):
        picture(i).save(folder / f"{i}.png")
    write_csv(folder, list(range(N)))
    return folder


def change(photos: Path) -> None:
    """Change every fourth image, the price of every third, and add some."""
    for i in (*range(0, N, 4), *range(N, N + 50)):
        picture(10_000 + i).save(photos / f"{i}.png")
    write_csv(photos, list(range(N + 50)), prices=2)


def delete(photos: Path) -> None:
    write_csv(photos, [i for i in range(N + 50) if i % 5], prices=2)


def writes(catalog: Path) -> Callable[[int], bool]:
    """Return the function that says whether a process has become the writer of a catalog."""

    def ready(pid: int) -> bool:
        return (catalog / LOCK).exists() and (catalog / LOCK).read_text().strip() == str(pid)

    return ready


@pytest.mark.slow
def test_killed_at_fifty_random_moments(photos: Path, models: tuple[Path, Path], tmp_path: Path) -> None:
    """After each of three changes of the images, the catalog equals one that was never killed."""
    dice, clean = random.Random(0), tmp_path / "clean"
    add = ["catalog", "add", "STORE", photos / "list.csv", "--run", models[0], "--index", "color"]
    stages: list[tuple[Callable[[Path], None], list[Any], int]] = [
        (lambda photos: None, add, 20),
        (change, add, 20),
        (delete, [*add, "--prune"], 10),
    ]
    for number, (edit, command, kills) in enumerate(stages):
        edit(photos)
        before = tmp_path / f"before {number}"
        if clean.exists():
            shutil.copytree(clean, before)
        begin = time.monotonic()
        assert finish(partial(start, *(clean if each == "STORE" else each for each in command)), ()) == 0
        expected, whole = content(clean), time.monotonic() - begin
        total, killed = 0, tmp_path / f"killed {number}"
        while total < kills:
            shutil.rmtree(killed, ignore_errors=True)
            if before.exists():
                shutil.copytree(before, killed)
            arguments = [killed if each == "STORE" else each for each in command]
            lives = (dice.uniform(0, 0.5 * max(whole - 1.5, 0.1)) for _ in range(kills - total))
            total += finish(partial(start, *arguments), lives, writes(killed))
            assert content(killed) == expected
            assert {file.name for file in killed.iterdir()} == {file.name for file in clean.iterdir()}


@pytest.mark.slow
def test_killed_while_the_model_changes(photos: Path, models: tuple[Path, Path], tmp_path: Path) -> None:
    catalog, log = tmp_path / "catalog", tmp_path / "log"
    with Catalog.open(catalog, models[0]) as opened:
        opened.add(photos / "list.csv")
    shutil.copytree(catalog, tmp_path / "new")
    with Catalog.open(tmp_path / "new", models[1]) as opened:
        opened.add(photos / "list.csv", new_model=True)
    old, new, dice = content(catalog), content(tmp_path / "new"), random.Random(1)
    seen: list[Content] = []
    command = ("catalog", "add", catalog, photos / "list.csv", "--run", models[1], "--new-model")
    kills = finish(
        lambda: start(*command, log=log),
        (dice.uniform(0, 0.4) for _ in range(12)),
        writes(catalog),
        lambda: seen.append(content(catalog)),
    )
    assert kills >= 3
    finished = sum(each == new for each in seen)  # killed after the swap
    assert seen == [old] * (kills - finished) + [new] * finished
    assert content(catalog) == new
    assert {file.name for file in catalog.iterdir()} == {file.name for file in (tmp_path / "new").iterdir()}


class Stop(BaseException):
    """What stands for a kill within this process."""


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Return a function that lets only so many of the next writes to a store happen; then each raises `Stop`."""
    left: list[int | None] = [None]

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Stop
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for name in ("put", "remove", "write", "create", "drop", "index_field"):
        counted(LocalStore, name)
    counted(Embedder, "save")
    counted(Path, "unlink")
    return lambda n: left.__setitem__(0, n)


def test_stopped_between_any_two_writes(
    models: tuple[Path, Path], tmp_path: Path, stop: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are those of the old model, then those of the new one, and the same call finishes."""
    monkeypatch.setattr(adding, "CHUNK", 16)
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(60):
        picture(i).save(photos / f"{i}.png")
    both, third = [ls.load(model) for model in models], make_trunk("small", pretrained=False)
    models_in_order = [both[0], both[1], Embedder(third, 8, crop=32).eval()]
    address, finished = tmp_path / "catalog", list[Any]()
    for i, model in enumerate(models_in_order):
        with Catalog.open(tmp_path / f"clean {i}", model) as catalog:
            catalog.add(photos)
        finished.append(content(tmp_path / f"clean {i}")[:-1])
    with Catalog.open(address, models_in_order[0]) as catalog:
        catalog.add(photos)
    # unfinished changes to the second model, then to the third or back to the first
    for target in (1, 2, 0):
        for n in itertools.count():
            before = tmp_path / "before"
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(address, before)
            stop(n)
            try:
                with Catalog.open(before, models_in_order[target]) as catalog:
                    catalog.add(photos, new_model=True)
                done = True
            except Stop:
                done = False
            stop(None)
            with Catalog.open(before) as catalog:
                assert "items" in catalog.status()
            assert content(before)[:-1] in ([finished[target]] if done else [finished[0], finished[target]])
            with Catalog.open(before, models_in_order[target]) as catalog:
                catalog.add(photos, new_model=True)
            assert content(before)[:-1] == finished[target]
            if done:
                break
        if target == 1:  # leave this change unfinished
            stop(4)
            with pytest.raises(Stop), Catalog.open(address, models_in_order[1]) as catalog:
                catalog.add(photos, new_model=True)
            stop(None)


# --- full disk, second writer ----------------------------------------------------------------------------------------------


def test_full_disk(photos: Path, models: tuple[Path, Path], tmp_path: Path) -> None:
    """At whatever point the disk is full: one line, the old content, and the same command finishes when there is room."""
    change(photos)
    with Catalog.open(tmp_path / "clean", models[0]) as catalog:
        catalog.add(photos / "list.csv")
    expected = content(tmp_path / "clean")
    add = ("catalog", "add", None, str(photos / "list.csv"), "--run", str(models[0]))
    with small_disk(tmp_path / "disk", 3 << 20) as disk:
        filler, address = fill(disk, 0), disk / "catalog"
        for free in (0, 20_000, 100_000, 200_000, 400_000):
            filler.unlink()
            filler = fill(disk, free)
            done = run(*(address if each is None else each for each in add))
            assert (done.code, one_line(done.err)) == (1, True), done
            assert "no space left" in done.err.lower()
        before = run("catalog", "status", address)
        assert before.code in (0, 1)
        assert before.code == 0 or one_line(before.err)
        filler.unlink()
        done = run(*(address if each is None else each for each in add))
        assert done.code == 0, done
        assert content(address) == expected


def test_second_writer(models: tuple[Path, Path], tmp_path: Path) -> None:
    picture(0).save(tmp_path / "0.png")
    with Catalog.open(tmp_path / "catalog", models[0]) as catalog:
        catalog.add(tmp_path / "0.png")
        before = content(tmp_path / "catalog")
        with catalog.store.writing():
            for command in (["add", tmp_path / "catalog", tmp_path], ["remove", tmp_path / "catalog", "0.png"]):
                done = run("catalog", *command)
                assert (done.code, one_line(done.err)) == (1, True), done
                assert f"in use by process {os.getpid()}. Wait for it" in done.err
            assert content(tmp_path / "catalog") == before  # it can be read
        assert run("catalog", "remove", tmp_path / "catalog", "0.png").code == 0
        assert catalog.count() == 0  # also in a process that had it open


# --- damage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_damaged_files(large: bool, models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer from a catalog with a damaged file is right, or there is an error on one line."""
    if large:  # then the database is not checked as a whole, and the array of vectors is kept
        monkeypatch.setattr(local, "SMALL", 0)
        monkeypatch.setattr(local, "UNSAVED", 0)
    rng, dice, address = np.random.default_rng(0), random.Random(0), tmp_path / "catalog"
    X = rng.normal(size=(300, 8)).astype(np.float32)
    picture(0).save(tmp_path / "0.png")
    with Catalog.open(address, models[0]) as catalog:
        catalog.add(tmp_path / "0.png")
        prices = [{"price": i} for i in range(300)]
        catalog.add_vectors([f"{i}" for i in range(300)], X, [f"p{i // 3}" for i in range(300)], prices)
        catalog.index_field("price")
        calibrate(catalog, 0.05)

    def answers() -> Any:
        with Catalog.open(address) as catalog:
            filtered = catalog.search(X[:2], 5, "price < 99")
            return catalog.search(X[::50], 5), filtered, catalog.search(str(tmp_path / "0.png"), 2)

    expected, outcomes = answers(), set[str]()
    files = [file for file in address.iterdir() if file.suffix == ".safetensors" or (not large and file.suffix == ".sqlite")]
    for file in files:
        whole = file.read_bytes()
        for kind, _ in itertools.product(DAMAGES, range(25)):
            file.write_bytes(damaged(whole, dice, kind))
            for each in address.glob("*-wal"):
                each.unlink()
            try:
                found, problem = answers(), ""
            except ValueError as error:
                found, problem = expected, str(error)
            assert found == expected, (file.name, kind)
            assert not problem or one_line(problem)
            outcomes.add(f"{file.name.partition('-')[0]}, {'error' if problem else 'right'}")
            file.write_bytes(whole)
    assert answers() == expected
    assert outcomes >= ({"vectors, right", "model, error"} if large else {"catalog.sqlite, error", "model, error"})


def test_a_flipped_bit_in_a_field_never_misleads_a_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a row nor in an index of a catalog that is not checked as a whole when it is opened."""
    monkeypatch.setattr(local, "SMALL", 0)
    monkeypatch.setattr(local, "UNSAVED", -1)
    address, X = tmp_path / "catalog", np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    fields = [{"color": ("red", "blue")[i % 2], "price": i} for i in range(40)]
    with catalog_of(address, X, [f"shoe {i // 2}" for i in range(40)], metadata=fields) as catalog:
        catalog.index_field("color")
        catalog.search(X[:1])
    calls: list[Callable[[Catalog], Any]] = [
        lambda catalog: catalog.search(X[:3], 40, "color = red"),
        lambda catalog: catalog.count("not color = blue"),
        lambda catalog: catalog.ids("color = red and price < 30"),
        lambda catalog: catalog.ids("product = 'shoe 3'"),
        lambda catalog: list(catalog.items()),
        lambda catalog: catalog.search(X, 3),
    ]
    with Catalog.open(address) as catalog:
        expected = [call(catalog) for call in calls]
    file = address / local.DATABASE
    assert list(address.glob("vectors-*"))
    whole, problems = file.read_bytes(), [list[str]() for _ in calls]
    places = [found.start() for text in (b"red", b"blue", b"shoe 3", b"color") for found in re.finditer(text, whole)]
    assert len(places) > 80  # rows, index and schema
    for place, bit in zip(places, itertools.cycle((1, 128)), strict=False):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        for i, call in enumerate(calls):
            try:
                with Catalog.open(address) as catalog:
                    assert call(catalog) == expected[i]
            except ValueError as error:
                problems[i].append(str(error))
    assert all("must be a readable catalog, got: " in text and one_line(text) for text in itertools.chain(*problems))
    assert len(problems[0]) > 80
    assert problems[0] == problems[1] == problems[2] == problems[3]


FORMATS = {
    "png": "PNG",
    "jpg": "JPEG",
    "gif": "GIF",
    "webp": "WEBP",
    "tif": "TIFF",
    "bmp": "BMP",
    "avif": "AVIF",
    "jpeg": "JPEG",
}


@pytest.mark.slow
def test_a_thousand_hostile_queries(models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file gets an answer or a warning on one line, in a folder and by itself."""
    photos, dice = tmp_path / "photos", random.Random(0)
    photos.mkdir()
    for i, (suffix, name) in enumerate(FORMATS.items()):
        picture(i, 60, 40).save(photos / f"{i}.{suffix}", name)
    with Catalog.open(tmp_path / "catalog", models[0]) as catalog:
        assert catalog.add(photos).added == len(FORMATS)
    originals, hostile = sorted(photos.iterdir()), tmp_path / "hostile"
    hostile.mkdir()
    for i in range(1000):
        original, kind = originals[i % len(originals)], dice.choice(list(DAMAGES))
        name = dice.choice(["", "ä ", "\n", "'; drop table items_1; --", "-k "]) + f"{i}{original.suffix}"
        (hostile / name).write_bytes(damaged(original.read_bytes(), dice, kind))
    capsys.readouterr()
    assert main(["search", str(tmp_path / "catalog"), str(hostile), "--json"]) == 0
    out, err = capsys.readouterr()
    warned = err.splitlines()
    answered = [row["query"] for row in json.loads(out)]
    assert len(warned) > 100
    assert len(answered) > 100
    assert sum("is left out: " in line for line in warned) + len(answered) == 1000
    files = sorted(map(str, hostile.iterdir()))
    for file in files[::25]:
        code = main(["search", str(tmp_path / "catalog"), file])
        out, err = capsys.readouterr()
        assert code == (0 if file in answered else 1)
        assert one_line(out.partition("\n")[0]) if code == 0 else all(map(one_line, err.splitlines()))
        assert "Traceback" not in out + err
