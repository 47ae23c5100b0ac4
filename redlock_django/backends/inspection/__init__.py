"""Inspection: what every store shows of its locks."""
