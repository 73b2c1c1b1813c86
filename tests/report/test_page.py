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
    """A page as its elements, each with its attributes, and the text inside each heading, cell and paragraph."""

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
    """Good, bad, and an untrained one between them."""
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
        f"Lifted structured finds the right class first for {100 * recall:.1f} % of 40 images of 10 classes that it has never "
        f"seen, {100 * difference.value:.1f} points above untrained ({words.p_text(difference.p)}).".replace("\xa0", " ")
    )


def test_the_tables_have_the_scores(page: Parsed, runs: list[Path]) -> None:
    cells = page.text_of("td")
    found = read_runs(runs, progress=False)
    for run in found:
        for estimate in run.scores.measures.values():
            assert f"{100 * estimate.value:.1f} {100 * estimate.low:.1f}–{100 * estimate.high:.1f}" in cells
    for other in (found[0], found[2]):
        for each in compare(found[1].scores, other.scores).differences.values():
            p = words.p_text(each.p).replace("\xa0", " ")
            text = f"{100 * each.value:+.1f} {100 * each.low:+.1f} to {100 * each.high:+.1f} {p}"
            assert text in [cell.replace("\xa0", " ") for cell in cells]
    heads = page.text_of("th")
    assert [head for head in heads if head.startswith("Recall@")][:6] == [f"Recall@{k}" for k in (1, 2, 4, 8, 16, 32)]


def test_galleries_show_what_is_nearest(file: Path, runs: list[Path], packed: PackedImages) -> None:
    """Each gallery's first query: its picture has the colour of its image, and its neighbours are the nearest."""
    text = file.read_text(encoding="utf-8")
    run = read_runs(runs, progress=False)[1]
    neighbours = nearest_neighbors(run.embeddings, 5)[1]
    colours = packed.images[packed.test][:, 8, 8].astype(int)  # every image has one of its own
    for kind in ("successes", "failures", "instructive"):
        part = text[text.index(f'id="gallery-{kind}"') :]
        shown = []
        for address in re.findall(r'src="data:image/webp;base64,([^"]+)"', part)[:6]:
            with Image.open(io.BytesIO(base64.b64decode(address))) as picture:
                colour = np.asarray(picture.convert("RGB"))[72, 72].astype(int)
            shown.append(int(np.abs(colours - colour).sum(axis=1).argmin()))
        assert shown[1:] == neighbours[shown[0]].tolist()
        right = run.labels[shown[1]] == run.labels[shown[0]]
        assert right == (kind == "successes")


def test_size_is_stated_and_kept(file: Path, runs: list[Path], tmp_path: Path) -> None:
    size = file.stat().st_size
    assert f"One file of {size / 1e6:.1f} MB" in file.read_text(encoding="utf-8")
    assert size < 80e6
    again = write_report(runs, tmp_path / "again.html", max_mb=(size + 3000) / 1e6, progress=False)
    assert again.stat().st_size <= size + 3000


def test_a_page_that_is_too_large_leaves_the_old_one(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")
    with pytest.raises(ValueError, match=r"^max_mb must be above \d\.\d for this page and some more for its map, got 0\.1\."):
        write_report(runs[1:2], out, max_mb=0.1, progress=False)
    assert out.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("max_mb", [0, -1, float("nan"), float("inf"), True, "8"])
def test_max_mb_is_a_number(max_mb: float, runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_mb must be a finite number above 0, got .*\. Most mailboxes take 20\."):
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
    assert "100.0 % of 40 images of 10 classes." in page.text_of("h1")[0].replace("\xa0", " ")
    assert page.text_of("p").count("There are none: no query fits the rule.") == 2
    assert 'id="figure-confusions"' not in text
    assert 'id="figure-training"' not in text


def test_images_that_are_gone(tmp_path: Path) -> None:
    packed = squares(tmp_path / "squares", classes=3, images=4)
    run = write_run(tmp_path / "run", packed, embeddings(packed, spread=3.0))
    shutil.rmtree(packed.folder)
    page = Parsed(write_report([run], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
    assert f"The images are no longer in {packed.folder}" in " ".join(page.text_of("li"))
    assert any("How often these test classes were read cannot be told" in text for text in page.text_of("p"))


def test_two_images_of_one_class_and_one_of_another(tmp_path: Path) -> None:
    """As small as it gets: no microscope, lists of two neighbours."""
    packed = squares(tmp_path / "squares", classes=2, images=2)
    found = embeddings(packed)
    few = replace(found, **{name: getattr(found, name)[:3] for name in ("embeddings", "labels", "paths", "rows", "contents")})
    save_evaluated(few, tmp_path / "few.npz")
    text = write_report([tmp_path / "few.npz"], tmp_path / "report.html", progress=False).read_text(encoding="utf-8")
    assert 'id="figure-microscope"' not in text
    assert "of 2 images" in Parsed(text).text_of("h1")[0]


def test_published_figures_stand_beside_ours(packed: PackedImages, tmp_path: Path) -> None:
    found = embeddings(packed)
    cub = replace(found, protocol={**found.protocol, "data": "CUB-200-2011"})
    file = tmp_path / "pool5.npz"
    save_evaluated(cub, file)
    page = Parsed(write_report([file], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
    heads = page.text_of("th")
    assert "lifted structured 512-d, GoogLeNet; Rolínek et al., CVPR 2020" in heads
    assert any(head.startswith("Reported by others, for reference") for head in heads)
    assert "47.2" in page.text_of("td")
    (recall,) = re.findall(r'id="figure-recall".*?</figure>', (tmp_path / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    save_evaluated(replace(cub, part="train"), file)
    text = write_report([file], tmp_path / "train.html", progress=False).read_text(encoding="utf-8")
    assert "Rolínek" not in text
    (without,) = re.findall(r'id="figure-recall".*?</figure>', text, re.DOTALL)
    assert recall.count("<path") > without.count("<path")  # neither in the table nor in the figure
    save_evaluated(found, file)
    assert not read_runs([file], progress=False)[0].published


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
    assert text.endswith(f"never seen; no significant difference to twin ({recall}, p = 1.00).")


def test_what_is_said_of_other_data(packed: PackedImages, tmp_path: Path) -> None:
    """What was seen in training is counted, by the record of the embedder and not by where the data is."""
    elsewhere = squares(tmp_path / "squares", classes=4)
    folder = write_run(tmp_path / "run", packed)
    for seen, text in (
        (Seen(0, 24, 0, 4, 0, 0), " that it has never seen"),
        (Seen(24, 24, 4, 4, 0, 0), " that it was trained on"),
        (Seen(6, 24, 1, 4, 0, 0), " (seen in training: 6 of 24 images, 1 of 4 classes)"),
        (Seen(0, 24, 0, 4, 0, 6), f" (seen in training: {Seen(0, 24, 0, 4, 0, 6)})"),
        (Seen(0, 24, 0, 4, 2, 0), f" (seen in training: {Seen(0, 24, 0, 4, 2, 0)})"),
    ):
        save_evaluated(embeddings(elsewhere, spread=0.1, seen=seen), folder / "embeddings.npz")
        (run,) = read_runs([folder / "embeddings.npz"], progress=False)  # the folder is found from its file too
        assert run.config is not None
        assert words.headline(run, None, None).replace("\xa0", " ").endswith(f"100.0 % of 24 images of 4 classes{text}.")
        warned = (f"Of the images that run is measured on, training has seen {seen}.",)
        assert run.warnings == (warned if seen.any else ())
    alone = tmp_path / "alone.npz"
    found = embeddings(packed, seen=None)
    save_evaluated(replace(found, protocol={**found.protocol, "weights": "trained from random weights"}), alone)
    untrained = save_evaluated(found, tmp_path / "pool5.npz")
    one, two = read_runs([alone, untrained], progress=False)
    assert (one.trained, two.trained) == (True, False)
    assert words.headline(one, None, None).endswith("of 40 images of 10 classes.")


def test_images_alone_in_their_class_are_nowhere_a_failure(tmp_path: Path) -> None:
    packed = squares(tmp_path / "squares", classes=3, images=3)
    found = embeddings(packed, spread=0.01, seen=None)
    few = replace(found, **{name: getattr(found, name)[:7] for name in ("embeddings", "labels", "paths", "rows", "contents")})
    save_evaluated(few, tmp_path / "few.npz")
    (run,) = read_runs([tmp_path / "few.npz"], progress=False)
    assert words.headline(run, None, None).replace("\xa0", " ").endswith("100.0 % of 6 images of 2 classes.")
    assert "confusions" not in words.single_run_figures(run)
    figure = FIGURES["confusions"](run)
    assert isinstance(figure, Figure)
    assert "no confusions" in [text.get_text() for text in figure.axes[0].texts]


def test_an_untrained_one_is_the_measure(runs: list[Path]) -> None:
    found: list[EvaluatedRun] = read_runs(runs, progress=False)
    pool5, good, bad = found
    assert words.main_and_baseline(found) == (good, pool5)
    assert words.main_and_baseline([bad, good]) == (bad, good)
    assert words.main_and_baseline([pool5]) == (pool5, None)


def test_svg_takes_the_colours_of_the_page() -> None:
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


def test_dark_pages_have_lighter_colours_for_the_paper_s_methods() -> None:
    from liftedstruct.figures.style import COLORS, NEGATIVE, OTHER_COLORS, POSITIVE

    css = (Path(words.__file__).parent / "page.css").read_text()
    for colour in (*COLORS.values(), *OTHER_COLORS, POSITIVE, NEGATIVE):
        found = re.search(rf"--hue-{colour[1:]}: #([0-9a-f]{{6}})", css)
        assert found
        assert brightness(found[1]) > brightness(colour[1:])


def brightness(colour: str) -> float:
    return sum(int(colour[at : at + 2], 16) for at in (0, 2, 4)) / 3


def test_every_figure_of_the_page_is_one_of_the_registry(page: Parsed) -> None:
    shown = {each["id"].removeprefix("figure-") for each in page.of("figure") if each.get("id", "").startswith("figure-")}
    assert shown < set(FIGURES)


def test_what_was_set_is_said(packed: PackedImages, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", packed, embeddings(packed), loss={"temperature": 0.05}, seed=3)
    lines = dict(words.protocol(read_runs([folder], progress=False)))
    (settings,) = lines["Settings"]
    for text in ("loss=lifted_struct (margin 4.0, temperature 0.05)", "steps=20", "batch_size=12", "seed=3"):
        assert f", {text}" in settings
    assert (lines["Dim"], lines["Loss"], lines["Images"]) == (["8"], ["lifted_struct"], ["40"])
    assert lines["Resize mode"] == ["squash"]


def test_plain_embeddings(packed: PackedImages, tmp_path: Path) -> None:
    """A file of np.savez is enough for a report."""
    found, file = embeddings(packed), tmp_path / "plain.npz"
    np.savez(file, embeddings=found.embeddings, labels=found.labels)
    evaluate_file(file).save(scores_file(file))
    page = Parsed(write_report([file], tmp_path / "report.html", progress=False).read_text(encoding="utf-8"))
    assert "Crop" not in page.text_of("th")
    assert any("all 40 images of an unnamed dataset" in text for text in page.text_of("p"))
