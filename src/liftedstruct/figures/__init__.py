"""Arrays to pictures: curves, galleries, maps and the figures of the paper, in print quality. It reads no file and no model."""

from liftedstruct.figures.canvas import save_picture
from liftedstruct.figures.curves import recall_curves, score_figure, size_curves, training_curves
from liftedstruct.figures.distributions import confusion_figure, distance_histogram, microscope_figure
from liftedstruct.figures.evaluated_run import EvaluatedRun
from liftedstruct.figures.galleries import Queries, choose_queries, gallery
from liftedstruct.figures.ideas import batch_graph, failure_modes, mining, network_layouts
from liftedstruct.figures.kinds import FIGURES
from liftedstruct.figures.maps import thumbnail_map
from liftedstruct.figures.published import Published, published_for
from liftedstruct.figures.thumbnails import thumbnails_of

__all__ = [
    "FIGURES",
    "EvaluatedRun",
    "Published",
    "Queries",
    "batch_graph",
    "choose_queries",
    "confusion_figure",
    "distance_histogram",
    "failure_modes",
    "gallery",
    "microscope_figure",
    "mining",
    "network_layouts",
    "published_for",
    "recall_curves",
    "save_picture",
    "score_figure",
    "size_curves",
    "thumbnail_map",
    "thumbnails_of",
    "training_curves",
]
