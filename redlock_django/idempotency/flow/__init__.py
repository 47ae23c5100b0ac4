"""A request of an idempotent view: reading its key, deciding, running the view, recording it."""
