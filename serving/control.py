"""Everything of a worker's HTTP face but ``/infer``: health, metadata, statistics, metrics, and the update calls.

A FastAPI application, so that the calls document themselves (``/docs``, ``/openapi.json``). Each handler asks the
service and writes what ``describe`` or ``updater`` says. The token of update calls is checked by ``app`` before they
come here.
"""

from collections.abc import Awaitable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.exceptions import HTTPException

from serving import describe
from serving.errors import MethodError, RequestError, ServingError, UnavailableError, UnknownNameError, quote
from serving.protocol import Json
from serving.service import Service
from serving.updater import Step

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class StageCall(BaseModel):
    """Stage the checkpoint in ``folder`` (a path on the worker's machine), which must have ``root`` and ``seal``."""

    model_config = ConfigDict(extra="forbid")
    folder: Path
    root: Digest
    seal: Digest
    version: str


class RootCall(BaseModel):
    """Flip to ``root``, or undo if ``root`` is live."""

    model_config = ConfigDict(extra="forbid")
    root: Digest


def build_control(service: Service) -> FastAPI:
    """Make the application over a worker's state."""
    app = FastAPI(title="Treering worker", redirect_slashes=False)
    answer_errors(app)
    _add_health(app, service)
    _add_model(app, service)
    _add_updates(app, service)
    return app


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/v2")
    @app.get("/v2/", include_in_schema=False)
    async def server() -> Json:
        return describe.server_metadata()

    @app.get("/v2/health/live")
    async def live() -> Json:
        return {"live": True}

    @app.get("/v2/health/ready")
    async def ready() -> JSONResponse:
        return JSONResponse({"live": True, "ready": service.is_ready}, status_code=200 if service.is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=METRICS_TYPE)


def _add_model(app: FastAPI, service: Service) -> None:
    @app.get("/v2/models/stats")
    async def all_statistics() -> Json:
        return await statistics(service.model)

    @app.get("/v2/models/{name}/stats")
    @app.get("/v2/models/{name}/versions/{version}/stats")
    async def statistics(name: str, version: str | None = None) -> Json:
        live = service.find(name, version=version).engine.live
        return describe.model_statistics(name, version=live.slot.version, totals=service.metrics.totals)

    @app.get("/v2/models/{name}/config")
    @app.get("/v2/models/{name}/versions/{version}/config")
    async def config(name: str, version: str | None = None) -> Json:
        loaded = service.find(name, version=version)
        return describe.model_config(loaded.model, buckets=loaded.engine.buckets)

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str | None = None) -> JSONResponse:
        service.find(name, version=version)
        return JSONResponse({"name": name, "ready": service.is_ready}, status_code=200 if service.is_ready else 503)

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def metadata(name: str, version: str | None = None) -> Json:
        loaded = service.find(name, version=version)
        slot = loaded.engine.live.slot
        return describe.model_metadata(loaded.model, version=slot.version, root=slot.root)


def _add_updates(app: FastAPI, service: Service) -> None:
    @app.get("/v2/treering/models/{name}")
    async def standing(name: str) -> Json:
        return asdict(service.find(name).updater.standing)

    @app.post("/v2/treering/models/{name}/stage")
    async def stage(name: str, call: StageCall) -> Json:
        updater = service.find(name).updater
        return await _step(updater.stage(call.folder, root=call.root, seal=call.seal, version=call.version))

    @app.post("/v2/treering/models/{name}/flip")
    async def flip(name: str, call: RootCall) -> Json:
        return await _step(service.find(name).updater.flip(call.root))

    @app.post("/v2/treering/models/{name}/undo")
    async def undo(name: str, call: RootCall) -> Json:
        return await _step(service.find(name).updater.undo(call.root))


async def _step(work: Awaitable[Step]) -> Json:
    step = await work
    return {"outcome": step.outcome, "seconds": step.seconds, **asdict(step.standing)}


def answer_errors(app: FastAPI) -> None:
    """Make every error of ``app`` a body ``{"error": "..."}``, which is all that clients of the protocol read."""

    @app.exception_handler(ServingError)
    async def serving_error(_: Request, error: ServingError) -> JSONResponse:
        headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, UnavailableError) else None
        return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        found = quote(first.get("input"))
        return await serving_error(request, RequestError(f"'{field}' of the call", found=found, expected=first["msg"]))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> JSONResponse:
        path = f"path {quote(request.url.path)}"
        if error.status_code == MethodError.status:
            allowed = (error.headers or {}).get("Allow", "another method")
            return await serving_error(request, MethodError(path, found=request.method, expected=allowed))
        return await serving_error(
            request, UnknownNameError(path, found="no such path", expected="one that /openapi.json lists")
        )
