"""The WSGI application for gunicorn, on the masters in the environment variables."""

from __future__ import annotations

import json
import os

from benchmarks.site.views import Sites, configure

configure([tuple(place) for place in json.loads(os.environ["BENCH_MASTERS"])])
application = Sites()
