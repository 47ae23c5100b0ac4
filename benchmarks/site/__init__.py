"""A site of a few views: bare, locked, and under django-redis's `cache.lock`."""
