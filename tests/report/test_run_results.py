import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liftedstruct.data import PackedImages
from liftedstruct.embedder import Embeddings
from liftedstruct.evaluation import Scores, evaluate, evaluate_file
from liftedstruct.report.run_results import read_runs
from report.runs import embeddings, squares, write_run


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return squares(tmp_path_factory.mktemp("squares"))


def test_what_a_run_holds(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = embeddings(packed)
    (run,) = read_runs([write_run(tmp_path / "run", packed, found, margin=2.0)])
    assert (run.name, run.method) == ("lifted_struct", "lifted_struct")
    assert (run.size, run.trained, run.steps, run.margin) == (8, True, 20, 2.0)
    assert run.minutes == pytest.approx((10 * 12 / 10 + 10 * 12 / 20) / 60)  # two lines of ten steps of twelve images
    assert len(run) == len(found) == 36
    assert run.record["torch"] == "2.0"
    assert not run.warnings
    assert not capsys.readouterr().err
    rows = np.array([0, 7])
    assert np.array_equal(run.thumbnails(rows, 16), packed.images[packed.test[rows]])


def test_embeddings_by_themselves(packed: PackedImages, tmp_path: Path) -> None:
    embeddings(packed, dim=24).save(tmp_path / "pool5.npz")
    (tmp_path / "trunk").mkdir()
    embeddings(packed, dim=24).save(tmp_path / "trunk" / "embeddings.npz")
    run, other = read_runs([tmp_path / "pool5.npz", tmp_path / "trunk"])
    assert (run.name, other.name) == ("pool5", "trunk")
    assert not run.trained
    assert (run.steps, run.minutes, run.log) == (0, 0.0, ())


def test_every_run_has_a_name_of_its_own(packed: PackedImages, tmp_path: Path) -> None:
    small, large = embeddings(packed, dim=4), embeddings(packed, dim=8)
    runs = [
        write_run(tmp_path / "a", packed, small),
        write_run(tmp_path / "b", packed, large),
        write_run(tmp_path / "c", packed, large, loss="triplet", batches="triplets", negative="semi-hard"),
    ]
    assert [run.name for run in read_runs(runs)] == ["lifted_struct, 4-d", "lifted_struct, 8-d", "triplet, semi-hard"]
    assert [run.name for run in read_runs([*runs[:2], write_run(tmp_path / "d", packed, large, seed=1)])] == [
        *("lifted_struct, 4-d", "b", "d"),
    ]
    assert [run.name for run in read_runs([runs[0], runs[0]])] == ["a (1)", "a (2)"]


def test_scores_are_read_if_they_are_theirs(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", packed, embeddings(packed))
    (run,) = read_runs([folder])
    before = run.readings or 0
    first = run.scores
    assert run.readings == before + 1
    assert (folder / "scores.json").is_file()
    assert list(first.recall) == [1, 2, 4, 8, 16, 32]

    (again,) = read_runs([folder])
    assert again.scores.recall == first.recall
    assert again.readings == before + 1
    assert f"scores of {folder / 'scores.json'}" in capsys.readouterr().err

    found = embeddings(packed, spread=4.0)
    found.save(folder / "embeddings.npz")
    (other,) = read_runs([folder])
    assert other.scores.recall[1].value < first.recall[1].value
    assert other.readings == before + 2
    assert f"evaluated anew: {folder / 'scores.json'} is of other embeddings" in capsys.readouterr().err
    assert Scores.load(folder / "scores.json").recall == other.scores.recall

    (folder / "scores.json").write_text("{}")
    assert read_runs([folder])[0].scores.recall == other.scores.recall
    assert "must be a file of scores" in capsys.readouterr().err


def test_scores_beside_a_file(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pool5.npz"
    embeddings(packed).save(file)
    (run,) = read_runs([file])
    assert run.scores.recall
    before = run.readings
    assert read_runs([file])[0].scores.recall == run.scores.recall
    assert (tmp_path / "pool5.json").exists()  # so that the test classes are not read again
    assert run.readings == before
    (tmp_path / "pool5.json").write_text("{}")
    assert read_runs([file])[0].scores.recall == run.scores.recall
    assert (tmp_path / "pool5.json").read_text() == "{}"  # it is not ours
    evaluate_file(file, ks=(1, 3), clustering="none").save(tmp_path / "pool5.json")
    assert read_runs([file])[0].scores.nmi
    assert "lacks Recall@1 or the clusters of affinity propagation" in capsys.readouterr().err
    evaluate_file(file, ks=(1, 3), seed=5).save(tmp_path / "pool5.json")
    (run,) = read_runs([file])
    before = run.readings
    expected = evaluate(run.embeddings, run.labels, ks=(1, 2, 3, 4, 8, 16, 32), seed=5)
    assert run.scores.recall == expected.recall  # the other K come out of the ranks
    assert run.readings == before


def test_scores_with_other_settings_are_made_anew(
    packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pool5.npz"
    embeddings(packed).save(file)
    for settings in ({"singles": "miss"}, {"n_clusters": 3}):
        evaluate_file(file, **settings).save(tmp_path / "pool5.json")
        (run,) = read_runs([file])
        assert run.scores.singles == "leave-out"
        assert len(np.unique(run.scores.clusters["affinity"])) == len(np.unique(run.labels))
        assert "pool5.json was made with other settings than those of a report" in capsys.readouterr().err


def test_a_part_that_there_is_not(packed: PackedImages, tmp_path: Path) -> None:
    embeddings(packed, part="weird").save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"a\.npz must be of the part test, validation, train, all, got 'weird'"):
        read_runs([tmp_path / "a.npz"])


def test_doubts_are_said(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", packed, embeddings(packed), steps=50)
    (run,) = read_runs([folder])
    assert run.warnings == ("The training of run is not finished: step 20 of 50.",)
    assert capsys.readouterr().err == "".join(f"warning: {warning}\n" for warning in run.warnings)
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
    assert run.warnings == (f"The images are no longer in {moved.folder}, so that grey pictures stand in their places.",)
    assert np.ptp(run.thumbnails(np.array([0]), 32), axis=-1).max() == 0  # grey
    found = embeddings(packed)
    replace(found, protocol={**found.protocol, "checksum": "another"}).save(folder / "embeddings.npz")
    (run,) = read_runs([folder])
    assert "are others than those that were embedded" in run.warnings[0]


def test_what_is_no_run(packed: PackedImages, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", packed)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    found = embeddings(packed)
    np.savez(tmp_path / "bare.npz", embeddings=found.embeddings, labels=found.labels)
    replace(found, labels=found.labels[:-1]).save(tmp_path / "short.npz")
    replace(found, labels=found.labels + 99).save(tmp_path / "beyond.npz")
    objects: dict[str, Any] = {name: np.array([None]) for name in Embeddings.__dataclass_fields__}
    np.savez(tmp_path / "objects.npz", **objects)
    with pytest.raises(ValueError, match=r"runs must be at least one, got none\. Name the folder of a run, or an \.npz file"):
        read_runs([])
    for path, text in (
        (run, f"must hold embeddings.npz, there is none. Write it with: liftedstruct embed {run} {packed.folder}"),
        (tmp_path / "empty", "must be the folder of a run, it has neither config.yaml nor embeddings.npz. Check the path."),
        (tmp_path / "nowhere", "there is nothing at"),
        (tmp_path / "text.npz", "must be an .npz file of embed"),
        (tmp_path / "bare.npz", "must be an .npz file of embed"),
        (tmp_path / "objects.npz", "got: 'embeddings' holds Python objects"),
        (tmp_path / "short.npz", "one label, row and path for each embedding, it does not. Write it anew with embed."),
        (tmp_path / "beyond.npz", "must have one label, row and path for each embedding"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)) as caught:
            read_runs([path])
        assert "\n" not in str(caught.value)


def test_runs_are_of_the_same_images(packed: PackedImages, tmp_path: Path) -> None:
    found = embeddings(packed)
    found.save(tmp_path / "a.npz")
    fewer = replace(found, **{name: getattr(found, name)[1:] for name in ("embeddings", "labels", "paths", "rows", "contents")})
    changed = found.contents.copy()
    changed[4] += 1
    others = {
        "fewer": (fewer, "36 and 35 images"),
        "replaced": (replace(found, contents=changed), f"and {found.paths[4]!r} as image 4, of other content"),
        "relabelled": (replace(found, labels=np.roll(found.labels, 1)), "the same images with other labels"),
    }
    for name, (other, text) in others.items():
        other.save(tmp_path / f"{name}.npz")
        with pytest.raises(ValueError, match=r"the runs of a report must be of the same images.*" + re.escape(text)):
            read_runs([tmp_path / "a.npz", tmp_path / f"{name}.npz"])
