"""All benchmarks in one run: their records, the file that keeps them, the table at the end, and the page that is made of it."""

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from liftedstruct.embeddings import embed
from liftedstruct.evaluation import Scores, evaluate_file, scores_file
from liftedstruct.retrieval import recall_at_k
from liftedstruct.training import starting_trunk
from report.runs import embeddings, save_evaluated, squares, write_run
from training.sets import products, run

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"

GOOD = """
from records import Beside
from table import Table, flags

parser = flags(None)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()
table = Table()
table.say("two ways to do it")
table.section("empty")
table.section("a pass")
table.row("m = 64", 0.5, "ms", Beside("peer", 6.0), Beside("autograd", 1.0, 1.9), note="warm")
table.row("m = 128", 2.0, "ms", Beside("peer", None), Beside("autograd", 1.0))
table.bar("times faster", 12.0, least=8)
table.bar("MB", 3.0, most=2)
table.skip("birds", "LIFTEDSTRUCT_DATA is not set")
table.finish(options)
"""
BAD = "print('so far so good'); raise RuntimeError('no room')"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Modules of the benchmarks by their names."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=":")
    return importlib.import_module


@pytest.fixture
def tables(benchmark: Callable[[str], Any]) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_benchmark_is_in_the_suite(benchmark: Callable[[str], Any]) -> None:
    suite = benchmark("suite").SUITE
    programs = {file.stem for file in BENCHMARKS.glob("*.py") if "flags(__doc__)" in file.read_text()}
    assert set(suite) == programs
    for name, each in suite.items():
        text = each.script.read_text()
        flags = [word for word in (*each.short, *each.full) if word.startswith("--")]
        assert all(f'"{flag}"' in text for flag in flags), name


def test_one_succeeds_and_one_fails(
    benchmark: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = benchmark("suite")
    for name, text in (("good", GOOD), ("bad", BAD)):
        (tmp_path / f"{name}.py").write_text(text)
    fakes = {"bad": suite.Benchmark(tmp_path / "bad.py"), "good": suite.Benchmark(tmp_path / "good.py", ("--rounds", "2"))}
    file = tmp_path / "bench.json"
    monkeypatch.setattr(suite, "SUITE", fakes)
    monkeypatch.setattr(suite.run_suite, "__kwdefaults__", {**suite.run_suite.__kwdefaults__, "logs": tmp_path / "logs"})
    assert suite.main(["--out", str(file)]) == 1

    content = json.loads(file.read_text())
    assert set(content) == {"machine", "benchmarks"}
    assert set(content["machine"]) == {"processor", "cores", "gigabytes", "system", "python", "versions"}
    assert {"liftedstruct", "torch", "numpy", "faiss-cpu"} <= set(content["machine"]["versions"])
    assert str(tmp_path) not in file.read_text()
    bad, good = content["benchmarks"]["bad"], content["benchmarks"]["good"]
    assert (bad["failed"], bad["sections"]) == ("exit code 1", [])
    assert good["seconds"] > 0
    assert len(good["date"]) == len("2026-01-31")
    assert {key: value for key, value in good.items() if key not in ("seconds", "date")} == {
        "settings": {"rounds": 2},
        "sections": [
            {
                "title": "a pass",
                "rows": [
                    {
                        "what": "m = 64",
                        "ours": 0.5,
                        "unit": "ms",
                        "beside": [
                            {"name": "peer", "value": 6.0, "ratio": 12.0},
                            {"name": "autograd", "value": 1.0, "ratio": 1.9},
                        ],
                        "note": "warm",
                    },
                    {
                        "what": "m = 128",
                        "ours": 2.0,
                        "unit": "ms",
                        "beside": [
                            {"name": "peer", "value": None, "ratio": None},
                            {"name": "autograd", "value": 1.0, "ratio": 0.5},
                        ],
                        "note": "",
                    },
                ],
            }
        ],
        "bars": [
            {"what": "times faster", "value": 12.0, "least": 8, "most": None},
            {"what": "MB", "value": 3.0, "least": None, "most": 2},
        ],
        "skipped": ["birds: LIFTEDSTRUCT_DATA is not set"],
        "failed": "",
    }

    printed = capsys.readouterr().out
    assert " s  FAILED (exit code 1): RuntimeError: no room; all that it printed is in " in printed
    assert " s  2 rows, 1 of 2 bars met; MISSED: 3.00 MB (at most 2)\n" in printed
    assert "skipped birds: LIFTEDSTRUCT_DATA is not set\n" in printed
    assert "\nbad: failed, exit code 1\n" in printed
    assert "\ngood: a pass\n" in printed
    assert "\n m = 64 0.500 6.00 12.0 1.00 1.90 warm\n m = 128 2.00 1.00 0.500\n" in re.sub(" +", " ", printed)
    assert "so far so good" in (tmp_path / "logs" / "bad.txt").read_text()


@pytest.fixture
def kept(benchmark: Callable[[str], Any], tmp_path: Path) -> Path:
    """Results of this machine."""
    records, file = benchmark("records"), tmp_path / "kept.json"
    old = records.Record(sections=(records.Section("old", (records.Row("x", 1.0, "s"),)),), date="2026-01-31", seconds=60.0)
    records.Results(benchmark("machine").describe_machine(), {"one": old, "two": old}).write(file)
    return file


def test_only_replaces_its_own_part(benchmark: Callable[[str], Any], kept: Path) -> None:
    suite, records = benchmark("suite"), benchmark("records")
    record = '{"settings": {}, "sections": [], "bars": [], "skipped": ["all of it"]}'
    script = kept.with_name("two.py")
    script.write_text(f"import sys; assert 'long' in sys.argv; open(sys.argv[-1], 'w').write('{record}')")
    fakes = {name: suite.Benchmark(script, (), ("long",)) for name in ("zero", "one", "two")}
    before = records.read_results(kept)
    suite.run_suite(fakes, kept, full=True, only=["two", "zero"], logs=kept.parent)
    after = records.read_results(kept)
    assert after.machine == before.machine
    assert list(after.records) == ["zero", "one", "two"]
    assert after.records["one"] == before.records["one"]
    assert after.records["two"].skipped == ("all of it",)
    assert after.records["two"].sections == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"processor": "Z80"}, r"its processor is Z80, here .+"),
        ({"versions": {"torch": "0.4.1"}}, r"its liftedstruct is not there, here 0\.1\.0"),
    ],
)
def test_machines_are_not_mixed(
    benchmark: Callable[[str], Any], kept: Path, change: dict[str, object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps({**content, "machine": {**content["machine"], **change}}))
    before = kept.read_bytes()
    assert benchmark("suite").main(["--only", "losses", "--out", str(kept)]) == 1
    assert kept.read_bytes() == before
    captured = capsys.readouterr()
    assert captured.out == ""
    rule = r"benchmarks: kept\.json must be of this machine and its versions to keep a part of it, "
    assert re.fullmatch(rule + said + r"\. Run all benchmarks, or write to another file\.\n", captured.err)


def test_wrong_usage(benchmark: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = benchmark("suite")
    with pytest.raises(SystemExit, match="2"):
        suite.main(["--only", "losses,imagse"])
    assert (
        "must be one of embedding, evaluation, images, losses, products, report, training, got 'imagse'. Did you mean 'images'?"
        in (capsys.readouterr().err)
    )
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match=r"^list\.json must be a file of results, and cannot be read as one .* Remove it\.$"):
        benchmark("records").read_results(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("unit", "ours", "value", "ratio"),
    [("ms", 2.0, 6.0, 3), ("images/s", 2.0, 6.0, 1 / 3), ("GB", 4.0, 2.0, 0.5), ("%", 2.0, 6.0, None), ("s", 2.0, None, None)],
)
def test_a_ratio_is_how_many_times_better_ours_is(
    benchmark: Callable[[str], Any], unit: str, ours: float, value: float | None, ratio: float | None
) -> None:
    assert benchmark("records").better(unit, ours, value) == pytest.approx(ratio)


PAGE = """# Page

<!-- benchmarks: all -->
<!-- end -->

Between.

<!-- benchmarks: losses / a pass -->

| old | table |

<!-- end -->

<!-- benchmarks: losses / never measured -->

| kept |

<!-- end -->
"""
TABLE = """| | ours | peer | ratio | |
|---|---:|---:|---:|---|
| time | 2.00 ms | 12.5 ms | 6.25 | warm |
| memory | 1,234 MB | | | |"""
MADE = f"""# Page

<!-- benchmarks: all -->

## `make bench`

Z80, 1 cores, 16 GB of memory, CP/M, Python 3.11.0, torch 2.13.0. Measured on 2026-01-30 to 2026-01-31.

### losses

`benchmarks/losses.py` (largest 64, parts a b), 61 s. 1 of its 2 bars are met. Missed: 3.00 MB (at most 2). Skipped: no birds.

**a pass**

{TABLE}

### report

`benchmarks/report.py` failed: exit code 1.

<!-- end -->

Between.

<!-- benchmarks: losses / a pass -->

{TABLE}

<!-- end -->

<!-- benchmarks: losses / never measured -->

| kept |

<!-- end -->
"""


def worked(benchmark: Callable[[str], Any]) -> Any:
    """Results by hand."""
    records = benchmark("records")
    rows = (
        records.Row("time", 2.0, "ms", (records.Beside("peer", 12.5, 6.25),), "warm"),
        records.Row("memory", 1234.4, "MB"),
    )
    losses = records.Record(
        {"largest": 64, "parts": ["a", "b"]},
        (records.Section("a pass", rows),),
        (records.Bar("times faster", 6.25, least=6), records.Bar("MB", 3.0, most=2)),
        ("no birds",),
        date="2026-01-30",
        seconds=60.6,
    )
    failed = records.Record(failed="exit code 1", date="2026-01-31")
    machine = benchmark("machine").Machine("Z80", 1, 16, "CP/M", "3.11.0", {"torch": "2.13.0"})
    return records.Results(machine, {"losses": losses, "report": failed})


def test_a_page_by_hand(benchmark: Callable[[str], Any], tables: ModuleType, tmp_path: Path) -> None:
    worked(benchmark).write(tmp_path / "bench.json")
    results = tables.read_all(tmp_path)
    assert tables.filled(PAGE, results) == MADE
    assert tables.filled(MADE, results) == MADE


def test_a_page_without_results(tables: ModuleType, tmp_path: Path) -> None:
    made = tables.filled(PAGE, tables.read_all(tmp_path))
    assert made == PAGE.replace("all -->\n", "all -->\n\nNot measured yet: run `make bench`.\n\n")


def test_the_full_run_adds_what_the_short_one_does_not_have(
    benchmark: Callable[[str], Any], tables: ModuleType, tmp_path: Path
) -> None:
    records, short = benchmark("records"), worked(benchmark)
    short.write(tmp_path / "bench.json")
    [section] = short.records["losses"].sections
    million = records.Section("a million", (records.Row("time", 700.0, "s"),))
    longer = records.Record(sections=(section, million), date="2026-02-01", seconds=3600.0)
    records.Results(short.machine, {"losses": longer}).write(tmp_path / "bench-full.json")
    results = tables.read_all(tmp_path)
    made = tables.filled(PAGE.replace("never measured", "a million"), results)
    chapter = made.split("## `make bench-full` beyond that\n")[1].split("<!-- end -->")[0]
    assert "Measured on 2026-02-01." in chapter
    assert chapter.count("**") == 2
    assert chapter.endswith("**a million**\n\n| | ours, s |\n|---|---:|\n| time | 700 |\n\n")
    assert made.endswith(
        "<!-- benchmarks: losses / a million -->\n\n| | ours, s |\n|---|---:|\n| time | 700 |\n\n<!-- end -->\n"
    )
    with pytest.raises(ValueError, match=r"^a table must be of a benchmark and one of its sections, got 'losses / never mea"):
        tables.filled(PAGE, results)


def test_the_search_for_the_recipe_is_as_kept(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, results = benchmark("recipe"), BENCHMARKS / "results" / "recipe.jsonl"
    trials = recipe.read_trials(results)
    assert sum(recipe.is_removed(trial["settings"]) for trial in trials) == 2
    for trial in trials:  # each is a run that can be made again, but for settings that were removed
        if not recipe.is_removed(trial["settings"]):
            recipe.configure(trial["settings"], data="set", out="run", trunk=trial["trunk"])
        assert 0 < trial["before"] < 1
        assert 0 < trial["after"] < 1
        if "curve" in trial:
            assert trial["curve"][0] == [0, trial["before"]]
            assert trial["curve"][-1] == [trial["budget"]["steps"], trial["after"]]
    shown = [trial for one in recipe.ROUNDS for found in recipe.scores_of(one, trials).values() for trial in found]
    assert all(trial in shown for trial in trials)
    watched = [one for one in recipe.ROUNDS if one.validate_every < one.budget.steps]
    assert all("curve" in trial for one in watched for found in recipe.scores_of(one, trials).values() for trial in found)
    monkeypatch.setattr(recipe, "measure", None)  # all are done, so none is run
    monkeypatch.setattr("sys.argv", ["recipe", "--out", str(tmp_path), "--results", str(tmp_path / "recipe.jsonl")])
    (tmp_path / "recipe.jsonl").write_bytes(results.read_bytes())
    recipe.main()
    now, kept = (
        re.findall(r" \d+\.\d +\d+\.\d +(?:[+-]\d+\.\d +)?\d+\.\d min.*", path.read_text())
        for path in (tmp_path / "recipe.txt", results.with_suffix(".txt"))
    )
    assert now == kept  # settings have other names there
    assert len(kept) >= len(trials) - 4  # two seeds are on one line


def test_a_trial_of_the_search_is_trained_once(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = benchmark("recipe")
    tried: list[dict[str, Any]] = []

    def measure(one: Any, settings: dict[str, Any], *others: object) -> dict[str, Any]:
        tried.append(settings)
        if len(tried) == 2:
            raise KeyboardInterrupt
        scores = {"before": 0.5, "after": 0.5 + settings["lr"], "minutes": 1.0}
        return scores | {"curve": [(0, 0.5), (60, 0.6), (120, scores["after"])]}

    rounds = [recipe.Round("rates", "small", recipe.SMALL, {"lr": 0.1}, [{}, {"lr": 0.2}])]
    monkeypatch.setattr(recipe, "ROUNDS", rounds)
    monkeypatch.setattr(recipe, "measure", measure)
    results, figure, curves = (tmp_path / name for name in ("a.jsonl", "a.svg", "curves.svg"))
    flags = {"--out": tmp_path, "--results": results, "--figure": figure, "--curves": curves}
    monkeypatch.setattr("sys.argv", ["recipe", *(str(word) for pair in flags.items() for word in pair)])
    with pytest.raises(KeyboardInterrupt):
        recipe.main()
    assert len(results.read_text().splitlines()) == 1
    recipe.main()
    assert tried == [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.2}]
    rounds.append(recipe.Round("more rates", "small", recipe.SMALL, {"lr": 0.3}, [{}, {"lr": 0.4}]))
    rounds.append(recipe.Round("most rates", "small", recipe.SMALL, {"lr": 0.5}, [{}]))
    more = ["recipe", "--out", str(tmp_path), "--results", str(results), "--only", "more rates", "--share", "2/2"]
    with monkeypatch.context() as patch:
        patch.setattr("sys.argv", more)
        recipe.main()
    assert tried[3:] == [{"lr": 0.4}]
    assert re.search(r"lr 0\.2 +50\.0  70\.0  \+10\.0", results.with_suffix(".txt").read_text())
    assert b"</svg>" in figure.read_bytes()
    assert b"</svg>" in curves.read_bytes()


@pytest.mark.slow
def test_final_scores_are_kept_with_their_readings(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, folder = squares(tmp_path / "squares"), tmp_path / "reproduced"
    folder.mkdir()
    pool5 = save_evaluated(embeddings(packed, spread=2.0), folder / "pool5.npz")
    best = write_run(folder / "lifted_struct-8", packed, embeddings(packed, spread=0.5))
    other = write_run(folder / "triplet-8", packed, embeddings(packed, spread=1.5), loss="triplet", steps=30)
    scores = {path: Scores.load(scores_file(path)) for path in (pool5, best, other)}
    evaluate_file(other)  # once more than it should be
    results = tmp_path / "recipe.jsonl"
    monkeypatch.setattr("sys.argv", ["recipe", "--out", str(tmp_path), "--results", str(results), "--finals", str(folder)])
    benchmark("recipe").main()
    lines = [json.loads(line) for line in (tmp_path / "recipe-finals.jsonl").read_text().splitlines()]
    assert [(line["loss"], line["numbers"], line.get("steps")) for line in lines] == [
        ("untrained", 8, None),
        ("lifted_struct", 8, 20),
        ("triplet", 8, 30),
    ]
    assert [line["readings"] for line in lines] == [1, 1, 2]
    assert not results.exists()
    for line, each in zip(lines, scores.values(), strict=True):
        assert line["measures"]["Recall@1"][0] == each.recall[1].value
        assert line["below the best"][0] == pytest.approx(scores[best].recall[1].value - each.recall[1].value)
    assert str(tmp_path) not in (tmp_path / "recipe-finals.jsonl").read_text()


@pytest.mark.slow
def test_weights_of_a_trial_are_measured_again(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    recipe, packed = benchmark("recipe"), products(tmp_path / "packed")
    trial = run(packed, tmp_path / "run", validate_every=12, lr=1e-2)
    last = [line["recall_at_1"] for line in trial.log() if "recall_at_1" in line][-1]
    assert recipe.remeasure(trial.folder, packed, 28, 0.0)["recall_at_1"] == last
    embedder = run(packed, tmp_path / "last", validate_every=0, lr=1e-2).embedder()
    embedder.trunk.load_state_dict(starting_trunk(trial.config).state_dict())
    embedder.crop = 20
    found = embed(embedder, packed, packed.validation)
    line = recipe.remeasure(trial.folder, packed, 20, 1.0)
    assert line["recall_at_1"] == recall_at_k(found.embeddings, found.labels, (1,))[1]
    assert (line["trial"]["crop"], line["crop"], line["size"], line["pretrained_mix"]) == (28, 20, 32, 1.0)
