"""The documentation is correct: its code runs, its commands and flags exist, and its numbers match the results."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
import sys
import warnings
from itertools import chain, islice, repeat
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from PIL import Image

from liftedstruct.cli import COMMANDS, main
from liftedstruct.recipes.plan import BASELINES
from liftedstruct.training import PRESETS, load_config
from liftedstruct.training.runs import TRAIN_DIM
from liftedstruct.trunks import make_trunk
from recipes.sets import tiny_cub

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def with_sections(page: str) -> str:
    """Insert the sections of the README that a page includes."""

    def section(found: re.Match[str]) -> str:
        _, _, rest = README.partition(f"<!-- --8<-- [start:{found[1]}] -->\n")
        text, end, _ = rest.partition(f"<!-- --8<-- [end:{found[1]}] -->\n")
        assert end, found[1]
        return text

    return re.sub(r'^--8<-- "README\.md:(\w+)"$', section, page, flags=re.MULTILINE)


PAGES = {page.name: with_sections(page.read_text()) for page in sorted((ROOT / "docs").glob("*.md"))}
DOCUMENTS = {"README.md": README, **PAGES}

# Console blocks with this title take minutes or more. The tests keep their flags, but use few images and few steps.
LONG = "; tested on few images, for few steps"
TINY = {"CUB_200_2011.tgz": "photos/"}
FEW = {
    "train": "--trunk small --weights random --batch-size 8 --steps 2 --crop 32 --freeze 0 --threads 1",
    "fit": "--trunk small --size 48 --crop 32 --steps 2",
    "reproduce": "--trunk small --weights random --crop 32 --steps 2 --force",
}


# Settings that do not affect what a run learns.
OF_THE_RUN = {
    *("data", "out", "weights", "cache_chunk", "precision", "validation", "validate_every", "checkpoint_minutes", "log_every"),
    *("seed", "device", "threads"),
}


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(document: str, *languages: str) -> list[Block]:
    found = re.findall(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', document, flags=re.DOTALL | re.MULTILINE)
    return [block for block in map(Block._make, found) if block.language in languages]


def run(document: str, folder: Path) -> str:
    """Run the code and commands of a document in order, in a folder, and return what they print."""
    names: dict[str, object] = {"__name__": "document"}
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        for block in blocks(document, "python", "console"):
            if block.language == "python":
                exec(re.sub(r"^--8<--\n(.*)\n--8<--$", lambda found: (ROOT / found[1]).read_text(), block.text.rstrip()), names)
            for line in block.text.splitlines() if block.language == "console" else ():
                run_command(line, block.title.endswith(LONG))
    return printed.getvalue()


def run_command(line: str, long: bool) -> None:
    program, first, *rest = shlex.split(line, comments=True)
    expected = int(found[1]) if (found := re.search(r"# exit code (\d)$", line)) else 0
    if program == "liftedstruct" and long:
        few = {"CUB_200_2011.tgz": str(tiny_cub(Path("tiny-cub")))} if first == "reproduce" else TINY
        rest = [few.get(word, word) for word in rest] + FEW.get(first, "").split()
    if program == "liftedstruct":
        assert main([first, *rest]) == expected, line
    elif program == "python":
        assert (ROOT / first).is_file(), line
    elif program == "make":
        assert first in re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), line
    else:
        assert program == "pip", line


FLAG = r"(?<![\w-])(--[a-z][a-z-]+(?:\.[a-z][a-z0-9-]*)?)"


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Return all flags that `--help` lists."""
    printed = io.StringIO()
    for arguments in (["--help"], *([command, "--help"] for command in COMMANDS)):
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
    monkeypatch.setattr(sys, "path", [*sys.path])  # it adds the folder of the benchmarks
    return load(ROOT / "docs" / "tables.py")


class Tour(NamedTuple):
    folder: Path
    printed: str


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """Run the README. The pages continue in its folder."""
    folder = tmp_path_factory.mktemp("tour")
    return Tour(folder, run(README, folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_code_and_commands_run_in_order(name: str, tour: Tour) -> None:
    page = DOCUMENTS[name]
    assert page.count("\n```") == 2 * len(blocks(page, "python", "console", "text"))  # no block is skipped
    printed = run(page, tour.folder) if name not in ("README.md", "index.md") else tour.printed
    for block in blocks(page, "text"):
        assert block.text in printed


@pytest.mark.slow
def test_the_tour_is_that_of_the_readme(tour: Tour) -> None:
    assert "effective rank" in tour.printed
    assert (tour.folder / "report.html").is_file()
    mine, all_of = (blocks(document, "python", "console") for document in (PAGES["index.md"], README))
    assert len(mine) >= 6
    assert [block for block in all_of if block in mine] == mine  # the start page has no other blocks


def test_commands_of_the_readme_are_the_commands() -> None:
    assert set(re.findall(r"`liftedstruct (\w+)", README)) == set(COMMANDS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_and_flags_exist(name: str, flags: set[str]) -> None:
    document = DOCUMENTS[name]
    assert set(re.findall(r"`liftedstruct (\w+)", document)) <= set(COMMANDS)
    assert set(re.findall(FLAG, document)) - {"--constraint", "--loss.power"} <= flags  # the second is a plugin's


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
    suggested = {**trunk.suggested, "train_dim": TRAIN_DIM}
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


def test_the_page_on_the_protocol_has_what_the_recipe_changes_for_googlenet() -> None:
    [sentence] = re.findall(
        r"^`--trunk googlenet` suggests the same values except (.*)$", PAGES["protocol.md"], flags=re.MULTILINE
    )
    said = {name: float(value) for name, value in re.findall(r"`(\w+) ([\d.]+)`", sentence)}
    own, other = (make_trunk(name, pretrained=False).suggested for name in ("efficientnet_lite0", "googlenet"))
    assert said == {name: value for name, value in other.items() if own[name] != value}


def test_the_page_on_the_recipe_has_the_numbers_of_the_search() -> None:
    lines = (ROOT / "benchmarks" / "results" / "recipe.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    measured = [trial[when] for trial in trials for when in ("before", "after")]
    measured += [recall for trial in trials for _, recall in trial.get("curve", [])]
    looks = (ROOT / "benchmarks" / "results" / "recipe-looks.jsonl").read_text().splitlines()
    measured += [json.loads(line)["recall_at_1"] for line in looks]
    said = PAGES["recipe.md"].split("## What mattered\n")[1].split("## Results\n")[0]
    numbers = re.findall(r"(?<![\d.])[3-9]\d\.\d(?!\d)", said)
    assert len(numbers) > 40
    assert set(numbers) <= {f"{100 * recall:.1f}" for recall in measured}
    assert f"Each of the {len(trials)} trials is one line of" in " ".join(PAGES["recipe.md"].split())


@pytest.mark.parametrize("name", ["README.md", "recipe.md"])
def test_scores_on_the_test_classes_are_those_of_the_recipe(name: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8") if name == "README.md" else PAGES[name]
    trunks = {"efficientnet_lite0": "EfficientNet-Lite0", "googlenet": "GoogLeNet"}
    losses = {"lifted_struct": "lifted structured"}
    for row in json.loads((ROOT / "benchmarks" / "results" / "scores-cub.json").read_text())["rows"]:
        value, low, high = (100 * number for number in row["metrics"]["Recall@1"])
        others = ("Recall@2", "Recall@4", "Recall@8", "NMI, affinity", "F1, affinity")
        who = f"{trunks[row['trunk']]}, {losses.get(row['loss'], row['loss'])} | {row['dim']:,}"
        numbers = " | ".join(f"{100 * row['metrics'][each][0]:.1f}" for each in others)
        assert f"\n| {who} | {value:.1f} ({low:.1f} to {high:.1f}) | {numbers} |" in text
        assert row["test_evaluations"] == 1


@pytest.mark.parametrize("name", ["speed.md", "scaling.md"])
def test_tables_by_hand_have_the_numbers_of_the_benchmarks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = load_tables(monkeypatch)
    results = tables.read_all()
    by_hand = tables.PLACE.sub(
        lambda found: "" if tables.resolve(found[2].strip(), results, tables.RESULTS) else found[0], PAGES[name]
    )
    file, numbers = "", 0
    for line in by_hand.splitlines():
        if found := re.search(r"`benchmarks/results/(\w+)\.txt`", line):
            file = found[1]
        files = re.findall(r"`(\w+)\.txt`", line) or [file]
        if not line.startswith("|") or line.startswith("|---") or not files[0]:
            continue
        results = "".join((ROOT / "benchmarks" / "results" / f"{each}.txt").read_text() for each in files)
        cells = line.strip("|").split("|")[1:] if files == [file] else [line.strip("|").split("|")[-1]]
        for number in (number for cell in cells for number in re.findall(r"\d[\d,.]*\d|\d", cell)):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", results), (line, number)
            numbers += 1
    assert numbers >= 6 or by_hand != PAGES[name]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_are_made_of_the_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = load_tables(monkeypatch)
    assert tables.fill(DOCUMENTS[name]) == DOCUMENTS[name], "Run: python docs/tables.py"


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
