"""What is not the hot path: models and health for clients; metrics, engines, policy and ledger for operators."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from .. import __version__
from ..envs.cluster import PS_PER_S
from .api_schema import describe
from .cluster_file import EngineEntry, Role
from .engine import Engine, Unfit
from .http_client import Unreachable
from .metrics import CONTENT_TYPE
from .proxy import ApiKeys
from .request import Refused
from .service import Conflict, Service


class Body(BaseModel):
    """A body whose unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class EngineState(Body):
    """An engine and how it is."""

    name: str
    role: Role
    url: str
    health: Literal["unknown", "up", "ejected"]
    reason: str = Field(description="Why it is not up.")
    draining: bool
    breaker: Literal["closed", "open", "trying"]
    legs: int = Field(description="Legs in flight.")
    version: str | None = Field(description="Of vLLM.")
    block_size: int = Field(description="Tokens per KV block.")
    blocks: int = Field(description="Usable KV blocks.")
    kv_usage: float | None = Field(description="Part of the KV blocks in use, polled.")
    running: int | None = Field(description="Running requests, polled.")
    waiting: int | None = Field(description="Waiting requests, polled.")
    poll_age_s: float | None = Field(description="Seconds since the poll.")
    ejections: int

    @staticmethod
    def of(engine: Engine, now: int) -> EngineState:
        """Its state at `now`, ps of the router's clock."""
        poll = engine.poll
        return EngineState(
            name=engine.name,
            role=engine.role,
            url=engine.client.url,
            health=engine.health,
            reason=engine.reason,
            draining=engine.draining,
            breaker=engine.breaker.state,
            legs=engine.legs,
            version=".".join(map(str, engine.version)) if engine.version else None,
            block_size=engine.block_size,
            blocks=engine.blocks,
            kv_usage=poll.usage if poll else None,
            running=poll.running if poll else None,
            waiting=poll.waiting if poll else None,
            poll_age_s=(now - engine.polled_at) / PS_PER_S if engine.polled_at >= 0 else None,
            ejections=engine.ejections,
        )


class NewEngine(Body):
    """An engine to add."""

    role: Role
    engine: EngineEntry


class Drain(Body):
    """Whether nothing new is sent to an engine."""

    draining: bool


class Policies(Body):
    """The policies in charge."""

    policy: str = Field(min_length=1, max_length=10_000, description="As on the command line: NAME(key=value)@FILE.")
    shadow: str | None = Field(None, max_length=10_000, description="Decides too, and moves nothing.")


class PoliciesState(Policies):
    """The policies in charge, and what became of their decisions."""

    fallbacks: dict[str, int]


class Ledger(Body):
    """What the router believes to be in flight, per engine."""

    in_flight: int
    engines: list[dict[str, Any]]


class Health(Body):
    """Whether requests can be served."""

    status: Literal["ok", "degraded", "down", "draining"]
    in_flight: int
    problems: list[str]


def health_of(service: Service) -> Health:
    """What is well and what is not."""
    problems = [f"{e.name}: {e.reason}" for e in service.engines if e.health != "up"]
    problems += [f"{e.name}: has failed too often" for e in service.engines if e.health == "up" and e.breaker.tripped]
    problems += [f"{e.name}: is drained" for e in service.engines if e.draining]
    if service.records.problem:
        problems.append(f"records are not written ({service.records.problem})")
    pools: dict[str, bool] = {}
    for engine in service.engines:
        open_now = engine.health == "up" and not engine.draining and engine.breaker.state != "open"
        pools[engine.role] = pools.get(engine.role, False) or open_now
    status: Literal["ok", "degraded", "down", "draining"] = "degraded" if problems else "ok"
    if not all(pools.values()):
        status = "down"
        problems += [f"no {role} engine is available" for role, up in pools.items() if not up]
    if service.draining:
        status = "draining"
    return Health(status=status, in_flight=service.in_flight, problems=problems)


def client_app(service: Service, keys: ApiKeys) -> FastAPI:
    """What clients may ask beside completions: models and health."""
    app = _app("disaggroute", "An OpenAI-compatible endpoint over disaggregated engines.")
    with_key = Depends(_key(keys))

    @app.get("/health", responses={503: {"model": Health}})
    async def health() -> Response:
        """Whether requests can be served: 200 if so, 503 if not. Names no engine."""
        state = health_of(service)
        status = 200 if state.status in ("ok", "degraded") else 503
        return JSONResponse({"status": state.status, "in_flight": state.in_flight}, status)

    @app.get("/v1/models", dependencies=[with_key])
    async def models() -> dict[str, Any]:
        """The model that is served."""
        model = {
            "id": service.cluster.model,
            "object": "model",
            "created": round(service.clock.started_at),
            "owned_by": "disaggroute",
            "max_model_len": service.max_model_len or None,
        }
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{model}", dependencies=[with_key], responses={404: {}})
    async def model(model: str) -> dict[str, Any]:
        """The model of that name."""
        if model != service.cluster.model:
            text = f"The model {model!r} does not exist; this router serves {service.cluster.model!r}."
            raise Refused(text, status=404, param="model", kind="NotFoundError")
        found: dict[str, Any] = (await models())["data"][0]
        return found

    describe(app, secured=bool(keys))
    return app


class _JsonBodies:
    """Takes bodies for JSON whatever their header says: `curl -d` says that they are a form."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            others = [(key, value) for key, value in scope["headers"] if key != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
        await self._app(scope, receive, send)


def admin_app(service: Service, keys: ApiKeys) -> FastAPI:
    """What operators may ask and do.

    All of it runs in the event loop (`async def`): the router belongs to that thread.
    """
    app = _app("disaggroute admin", "Metrics, engines, policies and the ledger of a router.")
    admin = APIRouter(prefix="/admin", dependencies=[Depends(_key(keys))], responses={401: {}, 422: {}})

    def found(name: str) -> Engine:
        try:
            return service.engine(name)
        except KeyError:
            names = ", ".join(engine.name for engine in service.engines)
            raise Refused(f"there is no engine {name!r}; there are {names}", status=404, param="name") from None

    def shown(engine: Engine) -> EngineState:
        return EngineState.of(engine, service.clock.now())

    def policies() -> PoliciesState:
        router = service.router
        return PoliciesState(policy=router.policy, shadow=router.shadow, fallbacks=dict(router.fallbacks))

    @app.get("/metrics", dependencies=[Depends(_key(keys))], response_class=Response, responses={401: {}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """What is well and what is not."""
        state = health_of(service)
        response.status_code = 200 if state.status in ("ok", "degraded") else 503
        return state

    @admin.get("/engines")
    async def engines() -> list[EngineState]:
        """All engines."""
        return [shown(engine) for engine in service.engines]

    @admin.post("/engines", status_code=201, responses={400: {}, 409: {}, 502: {}})
    async def add(new: NewEngine) -> EngineState:
        """Adds an engine; it must answer and fit."""
        return shown(await service.add(new.role, new.engine))

    @admin.get("/engines/{name:path}", responses={404: {}})
    async def engine(name: str) -> EngineState:
        """One engine."""
        return shown(found(name))

    @admin.patch("/engines/{name:path}", responses={404: {}})
    async def drain(name: str, wanted: Drain) -> EngineState:
        """Drains an engine, or lets requests go there again."""
        engine = found(name)
        service.drain(engine, wanted.draining)
        return shown(engine)

    @admin.delete("/engines/{name:path}", status_code=204, responses={404: {}, 409: {}})
    async def remove(name: str, force: bool = False) -> Response:
        """Forgets an engine; with `force` also while requests are in flight there."""
        await service.remove(found(name), force)
        return Response(status_code=204)

    @admin.get("/policy")
    async def policy() -> PoliciesState:
        """The policies in charge."""
        return policies()

    @admin.put("/policy", responses={400: {}})
    async def switch(wanted: Policies) -> PoliciesState:
        """Puts other policies in charge, from the next request on; the ledger stays."""
        router, before = service.router, service.router.shadow
        router.switch_shadow(wanted.shadow)
        try:
            router.switch_policy(wanted.policy)
        except Exception:
            router.switch_shadow(before)
            raise
        return policies()

    @admin.get("/ledger")
    async def ledger() -> Ledger:
        """What the router believes to be in flight."""
        rows = service.router.snapshot()
        named = [{"engine": e.name, **row} for e, row in zip(service.engines, rows, strict=True)]
        return Ledger(in_flight=service.router.in_flight, engines=named)

    app.include_router(admin)
    app.add_middleware(_JsonBodies)
    return app


def _key(keys: ApiKeys) -> Any:
    scheme = HTTPBearer(auto_error=False)

    async def check(request: Request, _: HTTPAuthorizationCredentials | None = Depends(scheme)) -> None:  # noqa: B008
        given = request.headers.get("authorization")
        if not keys.admit(None if given is None else given.encode("latin-1", "replace")):
            raise Refused("the API key is missing or wrong; send it as Authorization: Bearer KEY", status=401)

    return check


def _app(title: str, description: str) -> FastAPI:
    app = FastAPI(title=title, description=description, version=__version__, docs_url=None, redoc_url=None)

    def answer(error: Refused) -> JSONResponse:
        wait = {"retry-after": str(error.retry_after_s)} if error.retry_after_s is not None else {}
        kinds = {401: {"www-authenticate": "Bearer"}}
        return Error(error.body, error.status, {**wait, **kinds.get(error.status, {})})

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return answer(error)

    @app.exception_handler(Conflict)
    async def conflict(_: Request, error: Conflict) -> JSONResponse:
        return answer(Refused(str(error), status=409))

    @app.exception_handler(Unreachable)
    async def unreachable(_: Request, error: Unreachable) -> JSONResponse:
        return answer(Refused(str(error), status=502))

    @app.exception_handler(Unfit)
    @app.exception_handler(ValueError)
    async def bad(_: Request, error: ValueError) -> JSONResponse:
        return answer(Refused(str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return answer(Refused(f"{where or 'body'}: {first['msg']}", status=422, param=where or None))

    @app.exception_handler(StarletteHTTPException)
    async def other(_: Request, error: StarletteHTTPException) -> JSONResponse:
        said = answer(Refused(str(error.detail), status=error.status_code))
        said.headers.update(dict(error.headers or {}))
        return said

    return app


class Error(JSONResponse):
    """An error whose body is JSON already."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        super().__init__(None, status, headers)
        self.body = body
        self.headers["content-length"] = str(len(body))


