"""The same shop with asgi-idempotency-header; run by uvicorn in an environment of its own."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from typing import Any

import uvicorn
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import MemoryBackend
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

effects: Counter[str] = Counter()


async def pay(request: Request) -> JSONResponse:
    """Pay an order, or refuse it."""
    order, kind = request.path_params["order"], request.path_params["kind"]
    effects[order] += 1
    count = effects[order]
    await asyncio.sleep(0.3)  # the payment provider
    if kind == "refuse":
        return JSONResponse({"refused": order, "count": count}, 402)
    return JSONResponse({"paid": order, "count": count}, 201)


async def count(request: Request) -> JSONResponse:
    """Return how often an order was paid."""
    return JSONResponse({"count": effects[request.path_params["order"]]})


site: Any = Starlette(
    routes=[
        Route("/effects/{order}", count, methods=["GET"]),
        Route("/{kind}/{order}", pay, methods=["POST"]),
    ]
)
site = IdempotencyHeaderMiddleware(site, backend=MemoryBackend())

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(site, log_level="error")
    asyncio.run(uvicorn.Server(config).serve([listener]))
