"""A process that hands a lock on, and a Celery worker that takes it."""
