import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from liftedstruct.data import PackedImages
from liftedstruct.embeddings import Embeddings
from liftedstruct.evaluation import count_test_evaluations, evaluate, evaluate_file
from liftedstruct.report.run_results import read_runs, read_scores
from report.runs import embeddings, save_evaluated, squares, write_run


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return squares(tmp_path_factory.mktemp("squares"))


def test_what_a_run_holds(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = embeddings(packed)
    (run,) = read_runs([write_run(tmp_path / "run", packed, found)])
    assert (run.name, run.method) == ("lifted_struct", "lifted_struct")
    assert (run.size, run.trained, run.steps) == (8, True, 20)
    assert run.minutes == pytest.approx(
        (10 * 12 / 10 + 10 * 12 / 20) / 60
    )  # two log lines of ten steps with twelve images each
    assert len(run) == len(found) == 36
    assert run.record["torch"] == "2.0"
    assert not run.warnings
    assert not capsys.readouterr().err
    rows = np.array([0, 7])
    assert np.array_equal(run.thumbnails(rows, 16), packed.images[packed.test[rows]])


def test_embeddings_by_themselves(packed: PackedImages, tmp_path: Path) -> None:
    save_evaluated(embeddings(packed, dim=24), tmp_path / "pool5.npz")
    (tmp_path / "trunk").mkdir()
    save_evaluated(embeddings(packed, dim=24), tmp_path / "trunk" / "embeddings.npz")
    run, other = read_runs([tmp_path / "pool5.npz", tmp_path / "trunk"])
    assert (run.name, other.name) == ("pool5", "trunk")
    assert not run.trained
    assert (run.steps, run.minutes, run.log) == (0, 0.0, ())


def test_every_run_has_a_name_of_its_own(packed: PackedImages, tmp_path: Path) -> None:
    small, large = embeddings(packed, dim=4), embeddings(packed, dim=8)
    runs = [
        write_run(tmp_path / "a", packed, small),
        write_run(tmp_path / "b", packed, large),
        write_run(tmp_path / "c", packed, large, loss={"name": "triplet", "triplets": "semi-hard"}),
    ]
    assert [run.name for run in read_runs(runs)] == ["lifted_struct, 4-d", "lifted_struct, 8-d", "triplet, semi-hard"]
    assert [run.name for run in read_runs([*runs[:2], write_run(tmp_path / "d", packed, large, seed=1)])] == [
        *("lifted_struct, 4-d", "b", "d"),
    ]
    assert [run.name for run in read_runs([runs[0], runs[0]])] == ["a (1)", "a (2)"]


def test_scores_are_read_and_nothing_is_measured(packed: PackedImages, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", packed, embeddings(packed))
    file = save_evaluated(embeddings(packed, spread=2.0), tmp_path / "pool5.npz")
    before = count_test_evaluations(packed.folder, packed.checksum)
    kept = {path: path.read_bytes() for path in (folder / "scores.json", tmp_path / "pool5.json")}
    runs = read_runs([folder, file])
    for run in runs:
        expected = evaluate(run.embeddings, run.labels, ks=(1, 2, 4, 8, 16, 32))  # larger K come from the ranks
        assert run.scores.metrics == expected.metrics
    assert count_test_evaluations(packed.folder, packed.checksum) == before
    assert {path: path.read_bytes() for path in kept} == kept


def test_embeddings_without_scores_of_theirs_are_refused(packed: PackedImages, tmp_path: Path) -> None:
    folder, file = write_run(tmp_path / "run", packed, embeddings(packed)), tmp_path / "pool5.npz"
    embeddings(packed, spread=4.0).save(folder / "embeddings.npz")
    embeddings(packed).save(file)
    before = count_test_evaluations(packed.folder, packed.checksum)
    for path, text in ((folder, "scores.json holds scores of other embeddings"), (file, "there is no")):
        with pytest.raises(ValueError, match=rf"{text}.* Run: liftedstruct evaluate {path}$"):
            read_runs([path])
    for settings, text in (
        ({"clustering": "none"}, "lacks"),
        ({"ks": (2,)}, "lacks"),
        ({"singles": "miss"}, "alone in their class"),
    ):
        evaluate_file(file, **settings).save(tmp_path / "pool5.json")
        with pytest.raises(ValueError, match=text):
            read_scores(file, Embeddings.load(file))
    (tmp_path / "pool5.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a scores file"):
        read_runs([file])
    assert count_test_evaluations(packed.folder, packed.checksum) == (before or 0) + 3


def test_plain_embeddings(packed: PackedImages, tmp_path: Path) -> None:
    found, file = embeddings(packed), tmp_path / "plain.npz"
    np.savez(file, embeddings=found.embeddings, labels=[found.class_names[label] for label in found.labels])
    evaluate_file(file).save(tmp_path / "plain.json")
    (run,) = read_runs([file])
    assert (run.name, run.dataset, run.part, run.trained) == ("plain", "", "all", False)
    assert set(run.class_names) == {found.class_names[label] for label in found.labels}
    assert "Placeholders" in run.warnings[0]
    with pytest.raises(ValueError, match="same images"):  # it does not record its images
        read_runs([file, save_evaluated(found, tmp_path / "pool5.npz")])


def test_doubts_are_said(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", packed, embeddings(packed), steps=50)
    (run,) = read_runs([folder])
    assert run.warnings == ("The training of run is not finished: step 20 of 50.",)
    assert capsys.readouterr().err == "".join(f"warning: {warning}\n" for warning in run.warnings)
    early = write_run(tmp_path / "early", packed, embeddings(packed), steps=50, patience=10, validate_every=4)
    with (early / "log.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 8, "recall_at_1": 0.9, "map_at_r": 0.8}) + "\n")
    assert read_runs([early])[0].warnings == ()  # step 20 is 12 after the best, so the run stopped early
    with (folder / "log.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 21, "failed": "the loss must stay finite, it is nan.", "images": [1]}) + "\n")
    (run,) = read_runs([folder])
    assert run.warnings[0] == "The training of run failed at step 21: the loss must stay finite, it is nan."
    assert run.steps == 20


def test_images_that_are_gone(packed: PackedImages, tmp_path: Path) -> None:
    shutil.copytree(packed.folder, tmp_path / "packed")
    moved = PackedImages(tmp_path / "packed")
    folder = write_run(tmp_path / "run", moved, embeddings(moved))
    shutil.rmtree(tmp_path / "packed")
    (run,) = read_runs([folder])
    (warning,) = run.warnings
    assert f"no longer in {moved.folder}" in warning
    assert np.ptp(run.thumbnails(np.array([0]), 32), axis=-1).max() == 0  # gray
    found = embeddings(packed)
    save_evaluated(replace(found, protocol={**found.protocol, "checksum": "another"}), folder / "embeddings.npz")
    (run,) = read_runs([folder])
    assert "are not the ones that were embedded" in run.warnings[0]


def test_what_is_no_run(packed: PackedImages, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", packed)
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match="runs must have at least one"):
        read_runs([])
    for path, text in (
        (run, "Write it with: liftedstruct embed"),
        (tmp_path / "nowhere", "must be an existing file or run folder"),
        (tmp_path / "text.npz", "must hold arrays"),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            read_runs([path])
        assert "\n" not in str(caught.value)


def test_runs_are_of_the_same_images(packed: PackedImages, tmp_path: Path) -> None:
    found = embeddings(packed)
    file = save_evaluated(found, tmp_path / "a.npz")
    fewer = replace(found, **{name: getattr(found, name)[1:] for name in ("embeddings", "labels", "paths", "rows", "contents")})
    changed = found.contents.copy()
    changed[4] += 1
    others = {"fewer": fewer, "replaced": replace(found, contents=changed)}
    others["relabeled"] = replace(found, labels=np.roll(found.labels, 1))
    for name, other in others.items():
        with pytest.raises(ValueError, match=rf"must be of the same images.* {file} and .*{name}"):
            read_runs([file, save_evaluated(other, tmp_path / f"{name}.npz")])
