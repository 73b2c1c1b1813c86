"""Export an embedder for people who do not have this package: ONNX, weights, configurations, a model card and a script."""

from liftedstruct.exporting.folder import export

__all__ = ["export"]
