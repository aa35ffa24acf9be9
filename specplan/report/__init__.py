"""Results made readable."""

from specplan.report.simulation import (
    deploy_sentence,
    simulation_notes,
    simulation_rows,
    simulation_table,
    write_result,
)
from specplan.report.tables import tables_report

__all__ = [
    "deploy_sentence",
    "simulation_notes",
    "simulation_rows",
    "simulation_table",
    "tables_report",
    "write_result",
]
