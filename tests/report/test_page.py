import base64
import io
import itertools
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from liftedstruct.data import PackedImages
from liftedstruct.embedder import Seen
from liftedstruct.evaluation import compare, evaluate_file, scores_file
from liftedstruct.figures import FIGURES, EvaluatedRun
from liftedstruct.figures.style import new_figure, styled
from liftedstruct.report import words
from liftedstruct.report.inline import inline_svg
from liftedstruct.report.page import write_report
from liftedstruct.report.run_results import read_runs
from liftedstruct.retrieval import nearest_neighbors
from report.runs import NASTY, embeddings, save_evaluated, squares, write_run

VOID = {"br", "img", "input", "meta", "wbr"}


class Parsed(HTMLParser):
    """Elements of a page with their attributes, and the text inside each of them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open[-1][0]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append([tag, ""])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1][0] == tag, f"{tag} ends {self.open[-1][0]}"
        name, text = self.open.pop()
        self.texts.append((name, " ".join(text.split())))
        if self.open:
            self.open[-1][1] += text

    def handle_data(self, data: str) -> None:
        self.open[-1:] = [[*self.open[-1][:1], self.open[-1][1] + data]] if self.open else []

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return squares(tmp_path_factory.mktemp("squares"), classes=10, images=4, names=NASTY)


@pytest.fixture(scope="module")
def runs(packed: PackedImages, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write a pretrained trunk's embeddings, a good run and a worse run."""
    folder = tmp_path_factory.mktemp("runs")
    pool5 = folder / "pool5.npz"
    save_evaluated(embeddings(packed, spread=9.0, seed=1), pool5)
    good = write_run(folder / "good", packed, embeddings(packed, spread=3.0))
    return [pool5, good, write_run(folder / "bad", packed, embeddings(packed, spread=6.0), loss="contrastive")]


@pytest.fixture(scope="module")
def file(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html", progress=False)


@pytest.fixture(scope="module")
def page(file: Path) -> Parsed:
    return Parsed(file.read_text(encoding="utf-8"))


def test_nothing_is_loaded(page: Parsed) -> None:
    addresses = [each[name] for _, each in page.elements for name in ("src", "href", "xlink:href", "srcset") if name in each]
    assert addresses
    assert all(address.startswith(("data:image/webp;base64,", "data:image/png;base64,", "#")) for address in addresses)
    (policy,) = [each["content"] for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")


def test_names_are_text(page: Parsed, packed: PackedImages) -> None:
    shown = set(page.text_of("bdi"))
    for name in NASTY:
        assert " ".join(name.split()) in shown
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert not [each for each in page.of("img") if not each["src"].startswith("data:")]
    titles = {each["title"] for each in page.of("bdi") if "title" in each}
    assert {packed.class_names[label] for label in np.unique(packed.labels[packed.test])} >= titles


def test_it_can_be_read_without_eyes(page: Parsed) -> None:
    assert page.of("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.of(landmark)) == 1
    assert len(page.of("h1")) == 1
    assert all(each["alt"] for each in page.of("img"))
    assert all(each.get("scope") in ("col", "row", "rowgroup") for each in page.of("th"))
    sheets = [each for each in page.of("div") if each.get("class") == "sheet"]
    assert len(sheets) == len(page.of("svg")) == 9
    assert all(len(each["aria-label"]) > 40 for each in sheets)
    ids = [each["id"] for _, each in page.elements if "id" in each]
    assert len(ids) == len(set(ids))
    links = [each["href"].removeprefix("#") for each in page.of("a")]
    assert {*links, *(each["aria-labelledby"] for _, each in page.elements if "aria-labelledby" in each)} <= set(ids)


def test_headings_do_not_skip_a_level(page: Parsed) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_headline_is_the_finding(page: Parsed, runs: list[Path]) -> None:
    pool5, good, _ = read_runs(runs, progress=False)
    nearest = nearest_neighbors(good.embeddings, 1)[1][:, 0]
    recall = np.mean(good.labels[nearest] == good.labels)
    difference = compare(good.scores, pool5.scores).differences["Recall@1"]
    assert difference.p < 0.05
    (headline,) = page.text_of("h1")
    assert headline.replace("\xa0", " ") == (
        f"Lifted structured reaches {100 * recall:.1f} % Recall@1 on 40 images of 10 classes not seen in training, "
        f"{100 * difference.value:.1f} points above the pretrained trunk ({words.p_text(difference.p)}).".replace("\xa0", " ")
    )


def test_the_tables_have_the_scores(page: Parsed, runs: list[Path]) -> None:
    cells = page.text_of("td")
    found = read_runs(runs, progress=False)
    for run in found:
        for estimate in run.scores.metrics.values():
            assert f"{100 * estimate.value:.1f} {100 * estimate.low:.1f}–{100 * estimate.high:.1f}" in cells
    for other in (found[0], found[2]):
        for each in compare(found[1].scores, other.scores).differences.values():
            p = words.p_text(each.p).replace("\xa0", " ")
            text = f"{100 * each.value:+.1f} {100 * each.low:+.1f} to {100 * each.high:+.1f} {p}"
            assert text in [cell.replace("\xa0", " ") for cell in cells]
    heads = page.text_of("th")
    assert [head for head in heads if head.startswith("Recall@")][:6] == [f"Recall@{k}" for k in (1, 2, 4, 8, 16, 32)]


def test_galleries_show_what_is_nearest(file: Path, runs: list[Path], packed: PackedImages) -> None:
    """Check the first query of each gallery by the colors of its images."""
    text = file.read_text(encoding="utf-8")
    run = read_runs(runs, progress=False)[1]
    neighbors = nearest_neighbors(run.embeddings, 5)[1]
    colors = packed.images[packed.test][:, 8, 8].astype(int)  # unique per image
    for kind in ("successes", "failures", "instructive"):
        part = text[text.index(f'id="gallery-{kind}"') :]
        shown = []
        for address in re.findall(r'src="data:image/webp;base64,([^"]+)"', part)[:6]:
            with Image.open(io.BytesIO(base64.b64decode(address))) as picture:
                color = np.asarray(picture.convert("RGB"))[72, 72].astype(int)
            shown.append(int(np.abs(colors - color).sum(axis=1).argmin()))
        assert shown[1:] == neighbors[shown[0]].tolist()
        right = run.labels[shown[1]] == run.labels[shown[0]]
        assert right == (kind == "successes")


def test_size_is_stated_and_kept(file: Path, runs: list[Path], tmp_path: Path) -> None:
    size = file.stat().st_size
    assert f"Self-contained file of {size / 1e6:.1f} MB" in file.read_text(encoding="utf-8")
    assert size < 80e6
    again = write_report(runs, tmp_path / "again.html", max_mb=(size + 3000) / 1e6, progress=False)
    assert again.stat().st_size <= size + 3000


def test_a_page_that_is_too_large_leaves_the_old_one(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")
    with pytest.raises(ValueError, match=r"^max_mb must be above \d\.\d to leave room for the map, got 0\.1\."):
        write_report(runs[1:2], out, max_mb=0.1, progress=False)
    assert out.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("max_mb", [0, -1, float("nan"), float("inf"), True, "8"])
def test_max_mb_is_a_number(max_mb: float, runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_mb must be a finite number above 0, got "):
        write_report(runs, tmp_path / "report.html", max_mb=max_mb)


def test_out_is_in_a_folder_that_is_there(runs: list[Path], tmp_path: Path) -> None:
    for out in (tmp_path / "nowhere" / "report.html", tmp_path):
        with pytest.raises(ValueError, match="out must be a file in a folder that exists"):
            write_report(runs, out)


def test_no_failures_and_no_word(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_evaluated(embeddings(packed, spread=0.01, seen=None), tmp_path / "perfect.npz")
    text = write_report([tmp_path / "perfect.npz"], tmp_path / "report.html", progress=False).read_text(encoding="utf-8")
    assert not capsys.readouterr().err
    page = Parsed(text)
    assert "100.0 % Recall@1 on 40 images of 10 classes." in page.text_of("h1")[0].replace("\xa0", " ")
    assert page.text_of("p").count("None: no query satisfies the rule.") == 2
    assert 'id="figure-confusions"' not in text
    assert 'id="figure-training"' not in text


def test_images_that_are_gone(tmp_path: Path) -> None:
    packed = squares(tmp_path / "squares", classes=3, images=4)
    run = write_run(tmp_path / "run", packed, embeddings(packed, spread=3.0))
    shutil.rmtree(packed.folder)
    page = Parsed(write_report([run], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
    assert "The images are no longer in squares/packed." in " ".join(page.text_of("li"))
    assert any("The number of evaluations on these test classes is unknown" in text for text in page.text_of("p"))


def test_no_absolute_path_is_shown(tmp_path: Path) -> None:
    packed = squares(tmp_path / "squares", classes=3, images=4)
    weights, out = str(tmp_path / "weights.npz"), tmp_path / "reports"
    found = embeddings(packed, spread=3.0)
    absolute = replace(found, paths=tuple(str(packed.folder / path) for path in found.paths))
    absolute = replace(absolute, protocol={**found.protocol, "trunk": f"transformers:{tmp_path / 'models' / 'vit'}"})
    runs = [write_run(tmp_path / "run", packed, absolute, weights=weights), tmp_path / "reports" / "pool5.npz"]
    out.mkdir()
    save_evaluated(absolute, runs[1])
    shutil.rmtree(packed.folder)  # the warning names the folder
    text = write_report(runs, out / "report.html", progress=False).read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    cells = Parsed(text).text_of("td")
    assert {f"{tmp_path.name}/run", "pool5.npz", "transformers:models/vit"} <= set(cells)
    assert any(f"weights={tmp_path.name}/weights.npz" in cell for cell in cells)


def test_the_next_step_follows_from_the_results(runs: list[Path], packed: PackedImages, tmp_path: Path) -> None:
    pool5, good, bad = read_runs(runs, progress=False)
    ahead, behind = compare(good.scores, pool5.scores), compare(pool5.scores, good.scores)
    unvalidated = [line for line in good.log if "recall_at_1" not in line]
    perfect = read_runs([write_run(tmp_path / "run", packed, embeddings(packed, spread=0.01))], progress=False)[0]
    for step, command in (
        (words.next_step(replace(pool5, data=""), None, None), "liftedstruct evaluate FILE.npz --compare OTHER.npz"),
        (words.next_step(pool5, None, None), "liftedstruct train FOLDER --out RUN --validation 0.1"),
        (
            words.next_step(replace(good, log=tuple(unvalidated)), pool5, ahead),
            "liftedstruct train FOLDER --out RUN --validation 0.1",
        ),
        (
            words.next_step(replace(good, log=tuple(unvalidated), record={"requested": {"steps": 0}}), pool5, ahead),
            "liftedstruct check DATA",  # the number of steps was chosen on held-out training classes
        ),
        (words.next_step(good, None, None), "liftedstruct embed small FOLDER --out pool5.npz"),
        (words.next_step(good, bad, compare(good.scores, bad.scores)), "liftedstruct embed small FOLDER --out pool5.npz"),
        (words.next_step(good, pool5, compare(good.scores, good.scores)), "liftedstruct train FOLDER --out RUN --seed 1"),
        (words.next_step(good, pool5, behind), "liftedstruct train FOLDER --out RUN --seed 1"),
        (words.next_step(good, pool5, ahead), "liftedstruct check DATA"),
        (
            words.next_step(perfect, pool5, compare(perfect.scores, pool5.scores)),
            "liftedstruct embed RUN FOLDER --part all --out all.npz",
        ),
    ):
        assert step[1] == command
    assert "no significant gain over the pretrained trunk" in words.next_step(good, pool5, behind)[0]


def test_the_next_step_is_below_the_headline(page: Parsed) -> None:
    assert "Next: check the dataset for bad images and duplicates: liftedstruct check DATA" in page.text_of("p")


def test_two_images_of_one_class_and_one_of_another(tmp_path: Path) -> None:
    """The smallest report: no inspection of a batch, two neighbors per image."""
    packed = squares(tmp_path / "squares", classes=2, images=2)
    found = embeddings(packed)
    few = replace(found, **{name: getattr(found, name)[:3] for name in ("embeddings", "labels", "paths", "rows", "contents")})
    save_evaluated(few, tmp_path / "few.npz")
    text = write_report([tmp_path / "few.npz"], tmp_path / "report.html", progress=False).read_text(encoding="utf-8")
    assert 'id="figure-batch-inspection"' not in text
    assert "on 2 images" in Parsed(text).text_of("h1")[0]


def test_published_figures_stand_beside_ours(packed: PackedImages, tmp_path: Path) -> None:
    found = embeddings(packed)
    cub = replace(found, protocol={**found.protocol, "data": "CUB-200-2011"})
    file = tmp_path / "pool5.npz"
    save_evaluated(cub, file)
    page = Parsed(write_report([file], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
    heads = page.text_of("th")
    assert "lifted structured 512-d, GoogLeNet; Rolínek et al., CVPR 2020" in heads
    assert any(head.startswith("Published scores, for reference") for head in heads)
    assert "47.2" in page.text_of("td")
    (recall,) = re.findall(r'id="figure-recall".*?</figure>', (tmp_path / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    save_evaluated(replace(cub, part="train"), file)
    text = write_report([file], tmp_path / "train.html", progress=False).read_text(encoding="utf-8")
    assert "Rolínek" not in text
    (without,) = re.findall(r'id="figure-recall".*?</figure>', text, re.DOTALL)
    assert recall.count("<path") > without.count("<path")  # not in the figure either
    save_evaluated(found, file)
    assert not read_runs([file], progress=False)[0].published


@pytest.mark.slow
def test_sizes_are_drawn_where_there_are_several(packed: PackedImages, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run{dim}", packed, embeddings(packed, dim=dim), dim=dim) for dim in (4, 8)]
    text = write_report(runs, tmp_path / "report.html", title="<b>mine</b>", progress=False).read_text(encoding="utf-8")
    assert 'id="figure-scores"' in text
    assert 'id="figure-recall"' not in text
    assert "<title>&lt;b&gt;mine&lt;/b&gt;</title>" in text


def test_progress_is_a_line_per_step(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(runs[1:2], tmp_path / "report.html")
    lines = capsys.readouterr().err
    for text in ("report: galleries and figures", "neighbors of 40 images", "t-SNE", "report: the map"):
        assert text in lines


def test_a_difference_that_chance_explains(runs: list[Path]) -> None:
    good = read_runs(runs[1:2], progress=False)[0]
    comparison = compare(good.scores, good.scores)
    text = words.headline(good, replace(good, name="twin"), comparison).replace("\xa0", " ")
    recall = f"{100 * good.scores.recall[1].value:.1f} %"
    assert text.endswith(f"not seen in training; no significant difference from twin ({recall}, p = 1.00).")


def test_what_is_said_of_other_data(packed: PackedImages, tmp_path: Path) -> None:
    """Images seen in training are counted by the embedder's record, not by the path of the dataset."""
    elsewhere = squares(tmp_path / "squares", classes=4)
    folder = write_run(tmp_path / "run", packed)
    for seen, text in (
        (Seen(0, 24, 0, 4, 0, 0), " not seen in training"),
        (Seen(24, 24, 4, 4, 0, 0), " that it was trained on"),
        (Seen(6, 24, 1, 4, 0, 0), " (seen in training: 6 of 24 images, 1 of 4 classes)"),
        (Seen(0, 24, 0, 4, 0, 6), f" (seen in training: {Seen(0, 24, 0, 4, 0, 6)})"),
        (Seen(0, 24, 0, 4, 2, 0), f" (seen in training: {Seen(0, 24, 0, 4, 2, 0)})"),
    ):
        save_evaluated(embeddings(elsewhere, spread=0.1, seen=seen), folder / "embeddings.npz")
        (run,) = read_runs([folder / "embeddings.npz"], progress=False)  # the run folder is also found from its file
        assert run.config is not None
        assert (
            words.headline(run, None, None).replace("\xa0", " ").endswith(f"100.0 % Recall@1 on 24 images of 4 classes{text}.")
        )
        warned = (f"Seen in the training of run: {seen}.",)
        assert run.warnings == (warned if seen.any else ())
    alone = tmp_path / "alone.npz"
    found = embeddings(packed, seen=None)
    save_evaluated(replace(found, protocol={**found.protocol, "weights": "trained from random weights"}), alone)
    untrained = save_evaluated(found, tmp_path / "pool5.npz")
    one, two = read_runs([alone, untrained], progress=False)
    assert (one.trained, two.trained) == (True, False)
    assert words.headline(one, None, None).endswith("on 40 images of 10 classes.")


def test_images_alone_in_their_class_are_nowhere_a_failure(tmp_path: Path) -> None:
    packed = squares(tmp_path / "squares", classes=3, images=3)
    found = embeddings(packed, spread=0.01, seen=None)
    few = replace(found, **{name: getattr(found, name)[:7] for name in ("embeddings", "labels", "paths", "rows", "contents")})
    save_evaluated(few, tmp_path / "few.npz")
    (run,) = read_runs([tmp_path / "few.npz"], progress=False)
    assert words.headline(run, None, None).replace("\xa0", " ").endswith("100.0 % Recall@1 on 6 images of 2 classes.")
    assert "confusions" not in words.single_run_figures(run)
    figure = FIGURES["confusions"](run)
    assert isinstance(figure, Figure)
    assert "no confusions" in [text.get_text() for text in figure.axes[0].texts]


def test_the_best_trained_run_is_compared_with_the_pretrained_trunk(runs: list[Path]) -> None:
    found: list[EvaluatedRun] = read_runs(runs, progress=False)
    pool5, good, bad = found
    assert bad.scores.recall[1].value < good.scores.recall[1].value
    twin = replace(good, name="twin")
    assert words.main_and_baseline(found) == (good, pool5)
    assert words.main_and_baseline([bad, good]) == (good, bad)
    assert words.main_and_baseline([bad, twin, good]) == (twin, bad)  # the first of equal runs
    assert words.main_and_baseline([pool5]) == (pool5, None)


def test_the_trunk_is_pretrained_or_untrained(packed: PackedImages, tmp_path: Path) -> None:
    found = embeddings(packed)
    for weights, name in (("lite0.pth (sha256 0123)", "pretrained"), ("random weights, seed 0", "untrained")):
        file = save_evaluated(replace(found, protocol={**found.protocol, "weights": weights}), tmp_path / "pool5.npz")
        (run,) = read_runs([file], progress=False)
        assert words.display_name(run) == run.label == name
        page = Parsed(write_report([file], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
        assert page.text_of("h1")[0].startswith(f"{name.capitalize()} reaches")


def test_svg_takes_the_colors_of_the_page() -> None:
    with styled():
        figure, (axes,) = new_figure(3, 2)
        axes.plot([1, 2], [3, 4], color="#7a1fa2")
    one, two = inline_svg(figure, "one"), inline_svg(figure, "two")
    assert "#1b1f24" not in one
    assert "stroke: currentColor" in one
    assert "var(--hue-7a1fa2, #7a1fa2)" in one
    assert "var(--figure, #ffffff)" in one
    assert one.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert 'viewBox="0 0 216 144"' in one
    names = [set(re.findall(r'id="([^"]+)"', each)) for each in (one, two)]
    assert names[0]
    assert not names[0] & names[1]
    assert set(re.findall(r"#(one-[^\")]+)", one)) <= names[0]


def test_dark_pages_have_lighter_colors_for_the_paper_s_methods() -> None:
    from liftedstruct.figures.style import COLORS, NEGATIVE, OTHER_COLORS, POSITIVE

    css = (Path(words.__file__).parent / "page.css").read_text()
    for color in (*COLORS.values(), *OTHER_COLORS, POSITIVE, NEGATIVE):
        found = re.search(rf"--hue-{color[1:]}: #([0-9a-f]{{6}})", css)
        assert found
        assert brightness(found[1]) > brightness(color[1:])


def brightness(color: str) -> float:
    return sum(int(color[at : at + 2], 16) for at in (0, 2, 4)) / 3


def test_every_figure_of_the_page_is_one_of_the_registry(page: Parsed) -> None:
    shown = {each["id"].removeprefix("figure-") for each in page.of("figure") if each.get("id", "").startswith("figure-")}
    assert shown < set(FIGURES)


def test_what_was_set_is_said(packed: PackedImages, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", packed, embeddings(packed), loss={"temperature": 0.05}, seed=3)
    lines = dict(words.protocol(read_runs([folder], progress=False), tmp_path))
    (settings,) = lines["Settings"]
    for text in ("loss=lifted_struct (margin 4.0, temperature 0.05)", "steps=20", "batch_size=12", "seed=3"):
        assert f", {text}" in settings
    assert (lines["Dim"], lines["Loss"], lines["Images"]) == (["8"], ["lifted_struct"], ["40"])
    assert lines["Resize mode"] == ["squash"]


def test_plain_embeddings(packed: PackedImages, tmp_path: Path) -> None:
    """A report of a plain np.savez file."""
    found, file = embeddings(packed), tmp_path / "plain.npz"
    np.savez(file, embeddings=found.embeddings, labels=found.labels)
    evaluate_file(file).save(scores_file(file))
    page = Parsed(write_report([file], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
    assert "Crop" not in page.text_of("th")
    assert any("all 40 images of an unnamed dataset" in text for text in page.text_of("p"))
