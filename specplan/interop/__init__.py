"""Importers and exporters, one file per engine or format."""

from specplan.interop.accepted_lengths import import_accepted_lengths, looks_like_steps

__all__ = ["import_accepted_lengths", "looks_like_steps"]
