"""Print-quality figures drawn from arrays, not from files or models: curves, galleries, maps and the paper's illustrations."""

from liftedstruct.figures import style  # noqa: F401, first: if matplotlib is missing, its error says what to install
from liftedstruct.figures.curves import recall_curves, score_figure, training_curves
from liftedstruct.figures.distributions import confusion_figure, distance_histogram, inspection_figure
from liftedstruct.figures.evaluated_run import EvaluatedRun
from liftedstruct.figures.galleries import MARKS, Queries, choose_queries, gallery
from liftedstruct.figures.illustrations import batch_graph, failure_modes, mining, network_layouts
from liftedstruct.figures.maps import thumbnail_map
from liftedstruct.figures.published import Published, published_for, published_like
from liftedstruct.figures.registry import FIGURES
from liftedstruct.figures.style import FORMATS, figure_bytes, save_figure
from liftedstruct.figures.thumbnails import Pixels, Thumbnails, placeholders, thumbnails_of

__all__ = [
    "FIGURES",
    "FORMATS",
    "MARKS",
    "EvaluatedRun",
    "Pixels",
    "Published",
    "Queries",
    "Thumbnails",
    "batch_graph",
    "choose_queries",
    "confusion_figure",
    "distance_histogram",
    "failure_modes",
    "figure_bytes",
    "gallery",
    "inspection_figure",
    "mining",
    "network_layouts",
    "placeholders",
    "published_for",
    "published_like",
    "recall_curves",
    "save_figure",
    "score_figure",
    "thumbnail_map",
    "thumbnails_of",
    "training_curves",
]
