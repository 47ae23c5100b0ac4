"""Integrations with other packages. Each module imports its package; nothing here imports them."""

from __future__ import annotations
