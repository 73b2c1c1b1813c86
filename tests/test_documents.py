"""The documentation is correct: its code runs, its commands and flags exist, and its numbers match the results."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from PIL import Image

from documents import DOCUMENTS, LONG, PAGES, README, ROOT, blocks, few_steps, python_blocks
from liftedstruct.cli import COMMANDS, main
from liftedstruct.recipes.plan import BASELINES
from liftedstruct.training import PRESETS, load_config
from liftedstruct.training.runs import PRETRAINED_MIX, TRAIN_DIM, WARMUP
from liftedstruct.trunks import make_trunk
from recipes.sets import tiny_cub

ADDRESS = "http://127.0.0.1:8765"  # of a server in the documents
TINY = {"CUB_200_2011.tgz": "photos/"}
FEW = {
    "train": "--trunk small --weights random --batch-size 8 --steps 2 --crop 32 --freeze 0 --threads 1",
    "fit": "--trunk small --size 48 --crop 32 --steps 2",
    "reproduce": "--trunk small --weights random --crop 32 --steps 2 --force",
}


# Settings that do not affect what a run learns.
OF_THE_RUN = {
    *("data", "out", "weights", "cache_chunk", "precision", "validation", "validate_every", "checkpoint_minutes", "log_every"),
    *("budget", "seed", "device", "threads"),
}


def run(document: str, folder: Path) -> str:
    """Run the code and commands of a document in order, in a folder, and return what they print."""
    names: dict[str, object] = {"__name__": "document"}
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.ExitStack() as servers:
        code, address = iter(python_blocks(document)), ADDRESS
        for block in blocks(document, "python", "console"):
            long = block.title.endswith(LONG)
            if block.language == "python":
                text = next(code).text.replace(ADDRESS, address)
                exec(few_steps(text) if long else text, names)
            for line in block.text.splitlines() if block.language == "console" else ():
                if line.startswith(("liftedstruct explore ", "liftedstruct serve ")):
                    address = servers.enter_context(server_of(*shlex.split(line)[1:]))
                else:
                    run_command(line.replace(ADDRESS, address), long)
    return printed.getvalue()


def run_command(line: str, long: bool) -> None:
    program, first, *rest = shlex.split(line, comments=True)
    expected = int(found[1]) if (found := re.search(r"# exit code (\d)$", line)) else 0
    if program == "liftedstruct" and long:
        few = {"CUB_200_2011.tgz": str(tiny_cub(Path("tiny-cub")))} if first == "reproduce" else TINY
        rest = [few.get(word, word) for word in rest] + FEW.get(first, "").split()
    if program == "liftedstruct":
        assert main([first, *rest]) == expected, line
    elif program == "curl":
        print(subprocess.run([program, first, *rest], stdout=subprocess.PIPE, text=True, check=True).stdout)
    elif program == "python":
        assert (ROOT / first).is_file(), line
    elif program == "make":
        assert first in re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), line
    else:
        assert program == "pip", line


@contextlib.contextmanager
def server_of(command: str, *arguments: str) -> Iterator[str]:
    """Run a command that answers requests until it is interrupted, on a free port, and yield its address."""
    options = ["--port", "0", *(["--no-browser"] if command == "explore" else [])]
    call = [sys.executable, "-m", "liftedstruct", command, *arguments, *options]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert found is not None
            with urllib.request.urlopen(f"{found[0]}/status") as answer:
                assert json.load(answer)["items"] > 0
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


FLAG = r"(?<![\w-])(--[a-z][a-z-]+(?:\.[a-z][a-z0-9-]*)?)"


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Return all flags that `--help` lists."""
    printed = io.StringIO()
    for arguments in (["--help"], *([*command.split(), "--help"] for command in COMMANDS)):
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit, match="0"):
            main(arguments)
    return set(re.findall(FLAG, printed.getvalue()))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])  # tables.py adds the folder of the benchmarks
    return load(ROOT / "docs" / "tables.py")


class Tour(NamedTuple):
    folder: Path
    printed: str


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """Run the tour of the first page. The other pages continue in its folder."""
    folder = tmp_path_factory.mktemp("tour")
    return Tour(folder, run(PAGES["index.md"], folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_code_and_commands_run_in_order(name: str, tour: Tour) -> None:
    page = PAGES[name]
    assert page.count("\n```") == 2 * len(blocks(page, "python", "console", "text"))  # no block is missed
    printed = tour.printed if name == "index.md" else run(page, tour.folder)
    for block in blocks(page, "text"):
        assert block.text in printed


@pytest.mark.slow
def test_the_tour_writes_a_report(tour: Tour) -> None:
    assert "effective rank" in tour.printed
    assert (tour.folder / "report.html").is_file()


@pytest.mark.slow
def test_the_readme_runs(tmp_path: Path) -> None:
    assert README.count("\n```") == 2 * len(blocks(README, "python", "console", "bibtex"))
    assert main(["products", "--out", str(tmp_path / "photos"), "--n-classes", "20", "--images-per-class", "4"]) == 0
    photo = next((tmp_path / "photos").rglob("*.png"))
    (tmp_path / "photo.jpg").write_bytes(photo.read_bytes())
    printed = run(README, tmp_path)
    product = photo.parent.relative_to(tmp_path / "photos").as_posix()
    assert "Recall@1" in printed
    assert f"[('{product}', " in printed
    assert f"photo.jpg: {product}, margin" in printed
    assert (tmp_path / "fitted" / "report.html").is_file()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_every_command_is_on_the_page_of_commands() -> None:
    assert set(re.findall(r"`liftedstruct ((?:catalog )?\w+)", PAGES["cli.md"])) == set(COMMANDS)


def test_the_reference_has_every_public_name() -> None:
    import liftedstruct

    assert sorted(re.findall(r"^::: liftedstruct\.(\w+)$", PAGES["reference.md"], flags=re.MULTILINE)) == liftedstruct.__all__


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_and_flags_exist(name: str, flags: set[str]) -> None:
    document = DOCUMENTS[name]
    assert set(re.findall(r"`liftedstruct ((?:catalog )?\w+)", document)) <= set(COMMANDS)
    assert (
        set(re.findall(FLAG, document)) - {"--constraint", "--no-deps", "--loss.power"} <= flags
    )  # two of pip, one of a plugin


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Flatten settings and their options as in the tables: `loss`, `loss.margin`, ..."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        options = {"name": value} if not isinstance(value, dict) else value
        found |= {name if option == "name" else f"{name}.{option}": each for option, each in options.items()}
    return found


def table_of(section: str) -> dict[str, Any]:
    """Return the settings in the table of a section of the protocol page."""
    text = PAGES["protocol.md"].split(f"## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \| (.+) \|$", text, flags=re.MULTILINE)
    return {setting: yaml.safe_load(value) for setting, value, _ in rows}


def test_the_page_on_the_protocol_has_the_default_recipe() -> None:
    config = load_config(data="data", out="run")
    whole = {name: value for name, value in config.plain().items() if name not in OF_THE_RUN}
    trunk = make_trunk(config.trunk.name, pretrained=False)
    suggested = {**trunk.suggested, "train_dim": TRAIN_DIM, "warmup": WARMUP, "pretrained_mix": PRETRAINED_MIX}
    whole |= {name: suggested[name] for name, value in whole.items() if value is None}
    shown = table_of("The default recipe")
    assert shown == {name: value for name, value in flat(whole).items() if name in shown or "." not in name}
    assert {"loss.margin", "loss.temperature", "sampler.samples_per_class", "augmentation.min_crop_scale"} <= shown.keys()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_page_on_the_protocol_has_the_presets(preset: str) -> None:
    assert table_of(f"The `{preset}` preset") == flat(PRESETS[preset])


def test_the_page_on_the_protocol_has_the_settings_of_other_losses() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `([\w.]+)` \| `(.*?)` \|$", PAGES["protocol.md"], flags=re.MULTILINE)
    shown: dict[str, dict[str, dict[str, Any]]] = {}
    for preset, loss, setting, value in rows:
        shown.setdefault(preset, {}).setdefault(loss, {"loss": loss})[setting] = yaml.safe_load(value)
    assert shown == {
        preset or "default": {loss: flat(settings) for loss, settings in losses.items()} for preset, losses in BASELINES.items()
    }


def test_the_page_on_the_protocol_has_what_trunks_suggest() -> None:
    own, other, vit = (make_trunk(name, pretrained=False) for name in ("efficientnet_lite0", "googlenet", "vit_small"))
    assert own.suggested == {**other.suggested, "lr": 2e-4}
    text, suggested = " ".join(PAGES["protocol.md"].split()), vit.suggested
    assert f"`--trunk googlenet` suggests the same values except a learning rate of {other.suggested['lr']:.4f}." in text
    crops = f"crops of {suggested['train_crop']} px for training and {suggested['crop']} px for evaluation"
    assert f"uses the class token, {crops}, a learning rate of {suggested['lr']:.4f}, and trains the last five blocks." in text
    assert list(vit.stages)[suggested["freeze"] :] == ["block8", "block9", "block10", "block11", "block12", "norm"]


def test_the_page_on_the_recipe_has_the_numbers_of_the_search() -> None:
    lines = (ROOT / "benchmarks" / "results" / "recipe.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    measured = [trial[when] for trial in trials for when in ("before", "after")]
    measured += [recall for trial in trials for _, recall in trial.get("curve", [])]
    looks = (ROOT / "benchmarks" / "results" / "recipe-looks.jsonl").read_text().splitlines()
    measured += [json.loads(line)["recall_at_1"] for line in looks]
    lines = (ROOT / "benchmarks" / "results" / "choices.jsonl").read_text().splitlines()
    for trial in map(json.loads, lines):
        found = [recall for _, recall in trial["curve"]] + list(trial["recall_at_1"].values())
        found += [score for key in ("map_at_r", "curve_64") for _, score in trial.get(key, ())]
        found += [
            recall
            for mixed in (*trial["mixed"].values(), *trial.get("best_mixed", {}).values(), trial.get("trunk_only", {}))
            for recall in mixed.values()
        ]
        measured += [recall / 100 for recall in found]
    said = PAGES["recipe.md"].split("## Length, and what is kept\n")[1].split("## Results\n")[0]
    numbers = re.findall(r"(?<![\d.])[3-9]\d\.\d(?!\d)", said)
    assert len(numbers) > 40
    assert set(numbers) <= {f"{100 * recall:.1f}" for recall in measured}
    assert f"Each of the {len(trials)} trials is one line of" in " ".join(PAGES["recipe.md"].split())


def test_test_classes_were_evaluated_once_per_score() -> None:
    for name in ("cub", "cars"):
        rows = json.loads((ROOT / "benchmarks" / "results" / f"scores-{name}.json").read_text())["rows"]
        assert [row["test_evaluations"] for row in rows] == [1] * len(rows)


MEASURED = r"(?<![\w.])\d[\d,.]* (?:ms|s|seconds|images/s|images per second|MB|GB)(?![\w/])"
NOT_MEASURED = {"36 MB", "1 GB", "100 GB"}  # sizes that follow from the number of entries, and limits


@pytest.mark.parametrize("name", ["README.md", "index.md", "speed.md", "scaling.md", "benchmarks.md", "metrics.md"])
def test_measured_numbers_are_generated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = load_tables(monkeypatch).PLACE.sub("", DOCUMENTS[name])
    assert set(re.findall(MEASURED, by_hand)) <= NOT_MEASURED


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_are_made_of_the_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = load_tables(monkeypatch)
    assert tables.fill(DOCUMENTS[name]) == DOCUMENTS[name], "Run: python docs/tables.py"
    assert [found[2] for found in tables.PLACE.finditer(DOCUMENTS[name]) if found[3].strip() in ("", "?")] == []


def test_the_page_on_the_report_has_every_figure() -> None:
    from liftedstruct.figures import FIGURES

    rows = re.findall(r"^\| (`[a-z-]+`.*?) \| (?:runs|a run|nothing) \|", PAGES["report.md"], flags=re.MULTILINE)
    assert sorted(re.findall(r"`([a-z-]+)`", " ".join(rows))) == sorted(FIGURES)


def test_contact_sheet(tmp_path: Path) -> None:
    load(ROOT / "examples" / "contact_sheet.py").main(tmp_path / "sheet.jpg", columns=2, size=16)
    with Image.open(tmp_path / "sheet.jpg") as sheet:
        assert sheet.size == (32, 12 * 16)


@pytest.mark.slow
def test_own_loop() -> None:
    before, after = load(ROOT / "examples" / "own_loop.py").main()
    sentence = f"Recall@1 is {before:.0%} with the features and {after:.0%} with the embeddings."
    assert sentence.replace("%", " %") in " ".join(PAGES["own-loop.md"].split())
    assert before < 0.1 < 0.99 < after


@pytest.mark.slow
def test_lightning_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("lightning"):
        warnings.simplefilter("ignore")  # from Lightning
        assert load(ROOT / "examples" / "lightning_loop.py").main() > 0.99
        return
    example = load(ROOT / "examples" / "lightning_loop.py")
    with pytest.raises(SystemExit, match=r"not installed\. Run: pip install lightning$"):
        example.main()

    class Logged(example.LiftedModule):  # type: ignore[misc, name-defined]
        """The module with its own log. The loop below calls its hooks in the same order as Lightning."""

        global_step = 0

        def log(self, name: str, value: float, **_: object) -> None:
            logged[name] = float(value)

    logged: dict[str, float] = {}
    monkeypatch.setattr(example, "LiftedModule", Logged)
    module, training, validation = example.make_data()
    optimizer = module.configure_optimizers()
    recalls = []
    for batch in islice(chain.from_iterable(repeat(training)), 121):  # epochs of three batches
        if module.global_step in (0, 120):
            with torch.no_grad():
                for number, seen in enumerate(validation):
                    module.validation_step(seen, number)
                module.on_validation_epoch_end()
            recalls.append(logged["recall@1"])
        optimizer.zero_grad()
        module.training_step(batch, module.global_step).backward()
        optimizer.step()
        module.global_step += 1
    assert recalls[0] < 0.5
    assert recalls[1] > 0.95
    assert logged["loss"] < 1

    checkpoint: dict[str, object] = {}
    module.on_save_checkpoint(checkpoint)
    again, _, _ = example.make_data()
    again.on_load_checkpoint(checkpoint)
    left = [rows.tolist() for rows in again.sampler]
    assert left == [module.sampler.batch(t).tolist() for t in (121, 122)]
