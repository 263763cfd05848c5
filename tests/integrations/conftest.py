"""Flower requires an older Typer, which a newer Click warns about when it is imported. That is no defect of fdaudit."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import typer  # noqa: F401
