"""Importers, one file per engine or format."""

from specplan.interop.accepted_lengths import import_accepted_lengths, looks_like_steps
from specplan.interop.formats import FORMATS, ReadingOptions, import_costs
from specplan.interop.timings import Facts

__all__ = ["FORMATS", "Facts", "ReadingOptions", "import_accepted_lengths", "import_costs", "looks_like_steps"]
