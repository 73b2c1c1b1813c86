"""The benchmark suite, its results files, and the numbers generated from them in the documents."""

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
from liftedstruct.training import Run, RunFolder, starting_trunk
from report.runs import embeddings, save_evaluated, squares, write_run
from training.sets import products, run

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"

GOOD = """
from records import Baseline
from table import Table, flags

parser = flags(None)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()
table = Table()
table.say("two ways to do it")
table.section("empty")
table.section("a pass")
table.row("m = 64", 0.5, "ms", Baseline("peer", 6.0), Baseline("autograd", 1.0, 1.9), note="warm")
table.row("m = 128", 2.0, "ms", Baseline("peer", None), Baseline("autograd", 1.0))
table.target("times faster", 12.0, minimum=8)
table.target("MB", 3.0, maximum=2)
table.skip("birds", "LIFTEDSTRUCT_DATA is not set")
table.finish(options)
"""
BAD = "print('so far so good'); raise RuntimeError('no room')"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a module of the benchmarks by name."""
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
                        "baselines": [
                            {"name": "peer", "value": 6.0, "ratio": 12.0},
                            {"name": "autograd", "value": 1.0, "ratio": 1.9},
                        ],
                        "note": "warm",
                    },
                    {
                        "what": "m = 128",
                        "ours": 2.0,
                        "unit": "ms",
                        "baselines": [
                            {"name": "peer", "value": None, "ratio": None},
                            {"name": "autograd", "value": 1.0, "ratio": 0.5},
                        ],
                        "note": "",
                    },
                ],
            }
        ],
        "targets": [
            {"what": "times faster", "value": 12.0, "minimum": 8, "maximum": None},
            {"what": "MB", "value": 3.0, "minimum": None, "maximum": 2},
        ],
        "skipped": ["birds: LIFTEDSTRUCT_DATA is not set"],
        "failed": "",
    }

    printed = capsys.readouterr().out
    assert " s  FAILED (exit code 1): RuntimeError: no room; full output in " in printed
    assert " s  2 rows, 1 of 2 targets met; MISSED: 3.00 MB (at most 2)\n" in printed
    assert "skipped birds: LIFTEDSTRUCT_DATA is not set\n" in printed
    assert "\nbad: failed, exit code 1\n" in printed
    assert "\ngood: a pass\n" in printed
    assert "\n m = 64 0.500 6.00 12.0 1.00 1.90 warm\n m = 128 2.00 1.00 0.500\n" in re.sub(" +", " ", printed)
    assert "so far so good" in (tmp_path / "logs" / "bad.txt").read_text()


@pytest.fixture
def kept(benchmark: Callable[[str], Any], tmp_path: Path) -> Path:
    """Write results of this machine and return the file."""
    records, file = benchmark("records"), tmp_path / "kept.json"
    old = records.Record(sections=(records.Section("old", (records.Row("x", 1.0, "s"),)),), date="2026-01-31", seconds=60.0)
    records.Results(benchmark("machine").describe_machine(), {"one": old, "two": old}).write(file)
    return file


def test_only_replaces_its_own_part(benchmark: Callable[[str], Any], kept: Path) -> None:
    suite, records = benchmark("suite"), benchmark("records")
    record = '{"settings": {}, "sections": [], "targets": [], "skipped": ["all of it"]}'
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
        ({"versions": {"torch": "0.4.1"}}, r"its liftedstruct is missing, here 0\.1\.0"),
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
    rule = r"benchmarks: kept\.json must be from this machine and these versions .*, but "
    assert re.fullmatch(rule + said + r"\. Run all benchmarks, or write to another file\.\n", captured.err)


def test_wrong_usage(benchmark: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = benchmark("suite")
    with pytest.raises(SystemExit, match="2"):
        suite.main(["--only", "losses,imagse"])
    assert "service, training, got 'imagse'. Did you mean 'images'?" in (capsys.readouterr().err)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match=r"^list\.json must be a results file, .* Remove it\.$"):
        benchmark("records").read_results(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("unit", "ours", "value", "ratio"),
    [("ms", 2.0, 6.0, 3), ("images/s", 2.0, 6.0, 1 / 3), ("GB", 4.0, 2.0, 0.5), ("%", 2.0, 6.0, None), ("s", 2.0, None, None)],
)
def test_a_ratio_is_how_many_times_better_ours_is(
    benchmark: Callable[[str], Any], unit: str, ours: float, value: float | None, ratio: float | None
) -> None:
    assert benchmark("records").improvement(unit, ours, value) == pytest.approx(ratio)


PAGE = """# Page

<!-- results: all --><!-- end -->

A pass takes <!-- results: losses / a pass / time -->0 s<!-- end -->, the peer
<!-- results: losses / a pass / time / peer -->0 s<!-- end -->,
<!-- results: losses / a pass / time / peer / ratio -->0<!-- end -->
times as long.

<!-- results: losses / a pass -->

| old | table |

<!-- end -->

<!-- results: summary -->
<!-- end -->

<!-- results: losses / never measured -->

| kept |

<!-- end -->
"""
TABLE = """| | ours | peer | ratio | |
|---|---:|---:|---:|---|
| time | 2.00 ms | 12.5 ms | 6.25 | warm |
| memory | 1,234 MB | | | |"""
MADE = f"""# Page

<!-- results: all -->

## `make bench`

Z80, 1 cores, 16 GB of memory, CP/M, Python 3.11.0, torch 2.13.0.

### losses

`benchmarks/losses.py` (largest 64), 2026-01-30. 61 s. 1 of 2 targets met. Missed: 3.00 MB (at most 2). Skipped: no birds.

**a pass**

{TABLE}

### report

`benchmarks/report.py` failed: exit code 1.

<!-- end -->

A pass takes <!-- results: losses / a pass / time -->2.00 ms<!-- end -->, the peer
<!-- results: losses / a pass / time / peer -->12.5 ms<!-- end -->,
<!-- results: losses / a pass / time / peer / ratio -->6.25<!-- end -->
times as long.

<!-- results: losses / a pass -->

{TABLE}

`make bench`, 2026-01-30: Z80, 1 cores, torch 2.13.0.

<!-- end -->

<!-- results: summary -->

| | liftedstruct | baseline | | ratio |
|---|---:|---|---:|---:|
| one pass | 2.00 ms | peer | 12.5 ms | 6.25 |

`make bench`, 2026-01-30 to 2026-01-31: Z80, 1 cores, torch 2.13.0.

<!-- end -->

<!-- results: losses / never measured -->

| kept |

<!-- end -->
"""


def worked(benchmark: Callable[[str], Any]) -> Any:
    """Return results with values set by hand."""
    records = benchmark("records")
    rows = (
        records.Row("time", 2.0, "ms", (records.Baseline("peer", 12.5, 6.25),), "warm"),
        records.Row("memory", 1234.4, "MB"),
    )
    losses = records.Record(
        {"largest": 64},
        (records.Section("a pass", rows),),
        (records.Target("times faster", 6.25, minimum=6), records.Target("MB", 3.0, maximum=2)),
        ("no birds",),
        date="2026-01-30",
        seconds=60.6,
    )
    failed = records.Record(failed="exit code 1", date="2026-01-31")
    machine = benchmark("machine").Machine("Z80", 1, 16, "CP/M", "3.11.0", {"torch": "2.13.0"})
    return records.Results(machine, {"losses": losses, "report": failed})


def test_a_page_by_hand(
    benchmark: Callable[[str], Any], tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SUMMARY", {"one pass": "losses / a pass / time / peer"})
    worked(benchmark).write(tmp_path / "bench.json")
    assert tables.fill(PAGE, tmp_path) == MADE
    assert tables.fill(MADE, tmp_path) == MADE


def test_a_page_without_results(tables: ModuleType, tmp_path: Path) -> None:
    made = tables.fill(PAGE, tmp_path)
    assert made == PAGE.replace("all -->", "all -->\n\nNot measured yet: run `make bench`.\n\n")


def test_the_full_run_adds_what_the_short_one_does_not_have(
    benchmark: Callable[[str], Any], tables: ModuleType, tmp_path: Path
) -> None:
    records, short = benchmark("records"), worked(benchmark)
    short.write(tmp_path / "bench.json")
    [section] = short.records["losses"].sections
    million = records.Section("a million", (records.Row("time", 700.0, "s"),))
    longer = records.Record(sections=(section, million), date="2026-02-01", seconds=3600.0)
    records.Results(short.machine, {"losses": longer}).write(tmp_path / "bench-full.json")
    page = PAGE.replace("<!-- results: summary -->\n<!-- end -->\n\n", "")
    made = tables.fill(page.replace("never measured", "a million"), tmp_path)
    chapter = made.split("## `make bench-full`, additional results\n")[1].split("<!-- end -->")[0]
    assert "2026-02-01" in chapter
    assert chapter.count("**") == 2
    table = "| | ours, s |\n|---|---:|\n| time | 700 |\n\n"
    assert chapter.endswith(f"**a million**\n\n{table}")
    caption = "`make bench-full`, 2026-02-01: Z80, 1 cores, torch 2.13.0."
    assert made.endswith(f"<!-- results: losses / a million -->\n\n{table}{caption}\n\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"^a key must name a benchmark and one of its sections, got 'losses / never mea"):
        tables.fill(page, tmp_path)
    with pytest.raises(ValueError, match="must name a row of 'a pass', one of time, memory, got 'tmie'"):
        tables.fill("<!-- results: losses / a pass / tmie -->0<!-- end -->", tmp_path)


def test_scores_and_rows_by_hand(tables: ModuleType, tmp_path: Path) -> None:
    common = {"trunk": "googlenet", "metrics": {"Recall@1": [0.5, 0.45, 0.55], "Recall@2": [0.6, 0.5, 0.7]}}
    rows = [
        {"loss": "pretrained", "dim": 1024, **common, "below_best": [0.125, 0.1, 0.15, 0.0001]},
        {"loss": "lifted_struct", "dim": 64, **common, "below_best": [0.0, 0.0, 0.0, 1.0]},
    ]
    (tmp_path / "scores-cub.json").write_text(json.dumps({"note": "Seed 0.", "rows": rows}))
    (tmp_path / "trials.json").write_text(json.dumps({"note": "One seed.", "rows": [{"trial": "lr 0.1", "digits": 98.1}]}))
    assert tables.resolve("scores cub: Recall@1 | Recall@2", {}, tmp_path) == (
        "| | dim | Recall@1 | @2 | vs. best (p) |\n|---|---:|---:|---:|---:|\n"
        "| GoogLeNet, pretrained | 1,024 | 50.0 (45.0 to 55.0) | 60.0 | −12.5 (< 0.001) |\n"
        "| GoogLeNet, lifted structured | 64 | 50.0 (45.0 to 55.0) | 60.0 | |\n\nSeed 0."
    )
    assert tables.resolve("rows trials", {}, tmp_path) == "| trial | digits |\n|---|---:|\n| lr 0.1 | 98.1 |\n\nOne seed."


def test_the_search_for_the_recipe_is_as_kept(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, results = benchmark("recipe"), BENCHMARKS / "results" / "recipe.jsonl"
    trials = recipe.read_trials(results)
    assert sum(recipe.is_removed(trial["settings"]) for trial in trials) == 2
    for trial in trials:  # each can be run again, except those with removed settings
        if not recipe.is_removed(trial["settings"]):
            recipe.configure(trial["settings"], data="set", out="run", trunk=trial["trunk"], steps=160)
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
    rows = re.findall(r"^\| .+ \| \d+\.\d \| \d+\.\d.* \|$", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(rows) >= len(trials) - 4  # two seeds share a row


def test_a_trial_of_the_search_is_trained_once(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert "| lr 0.2 | 50.0 | 70.0 | +10.0 | 1.0 |" in capsys.readouterr().out
    assert b"</svg>" in figure.read_bytes()
    assert b"</svg>" in curves.read_bytes()


@pytest.mark.slow
def test_choices_are_measured_on_validation_classes(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choices, packed = benchmark("choices"), products(tmp_path / "packed", classes=40, images=4, validation=0)
    monkeypatch.setattr(choices, "EVERY", 2)
    small = {"trunk": "small", "crop": 28, "train_crop": 28, "batch_size": 16, "weights": "random", "lr": 1e-3, "min_dim": 16}
    monkeypatch.setattr(choices, "BASE", {**small, "pretrained_mix": 0.0, "train_dim": 512, "dim": 512})
    monkeypatch.setattr(choices, "CHOICES", {"one": {"steps": 4}, "two": {"steps": 2, "pretrained_mix": 0.5}})
    results = tmp_path / "choices.jsonl"
    flags = ["--out", str(tmp_path / "runs"), "--data", f"squares={packed.folder}", "--results", str(results), "--threads", "1"]
    for only in (["--only", "one"], []):  # the second time, the first choice is done
        monkeypatch.setattr("sys.argv", ["choices", *flags, *only])
        choices.main()
    one, two = choices.read_trials(results)
    assert [(each["choice"], [step for step, _ in each["curve"]]) for each in (one, two)] == [
        ("one", [0, 2, 4]),
        ("two", [0, 2]),
    ]
    assert (list(one["mixed"]), two["mixed"]) == (["0.0", "0.3", "0.5"], {})
    for each in (one, two):
        assert each["recall_at_1"]["512"] == dict(each["curve"])[each["best_step"]]
        assert dict(each["map_at_r"])[each["best_step"]] == max(score for _, score in each["map_at_r"])
    run = Run(tmp_path / "runs" / "one-squares", RunFolder(tmp_path / "runs" / "one-squares").config(), 4, 4, None)
    start = starting_trunk(run.config).state_dict()
    state = choices.last_embedder(run, 1.0).trunk.state_dict()
    assert all(state[name].equal(tensor) for name, tensor in start.items())
    assert f"| squares | one | 30% | {one['best_step']} |" in capsys.readouterr().out


@pytest.mark.slow
def test_scores_of_an_experiment(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    packed, folder = squares(tmp_path / "squares"), tmp_path / "reproduced"
    folder.mkdir()
    pool5 = save_evaluated(embeddings(packed, spread=2.0), folder / "pool5.npz")
    best = write_run(folder / "lifted_struct-8", packed, embeddings(packed, spread=0.5))
    other = write_run(folder / "triplet-8", packed, embeddings(packed, spread=1.5), loss="triplet", steps=30)
    scores = {path: Scores.load(scores_file(path)) for path in (pool5, best, other)}
    evaluate_file(other)  # a second evaluation on the test classes
    benchmark("scores").main([str(folder), "--name", "cub", "--note", "Seed 0.", "--results", str(tmp_path)])
    content = json.loads((tmp_path / "scores-cub.json").read_text())
    rows = content["rows"]
    assert content["note"] == "Seed 0."
    assert [(row["loss"], row["dim"], row.get("steps")) for row in rows] == [
        ("pretrained", 8, None),
        ("lifted_struct", 8, 20),
        ("triplet", 8, 30),
    ]
    assert [row["test_evaluations"] for row in rows] == [1, 1, 2]
    for row, each in zip(rows, scores.values(), strict=True):
        assert row["metrics"]["Recall@1"][0] == pytest.approx(each.recall[1].value, rel=1e-4)
        assert row["below_best"][0] == pytest.approx(scores[best].recall[1].value - each.recall[1].value, rel=1e-4)
    assert str(tmp_path) not in (tmp_path / "scores-cub.json").read_text()


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
