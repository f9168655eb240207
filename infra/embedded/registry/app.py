"""The HTTP face of the registry: the subset of Confluent's API that its clients use for Avro."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from agl_stream.infra.embedded.registry.store import RegistryError, SchemaStore

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
STORE = web.AppKey("store", SchemaStore)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
routes = web.RouteTableDef()


def build_app(store: SchemaStore, max_body_bytes: int) -> web.Application:
    app = web.Application(middlewares=[_errors_as_json], client_max_size=max_body_bytes)
    app[STORE] = store
    app.add_routes(routes)
    return app


def _answer(body: Any, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(body), status=status, content_type=CONTENT_TYPE)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error is `{"error_code", "message"}`, also for unknown paths; nothing internal leaves."""
    try:
        return await handler(request)
    except RegistryError as error:
        return _answer({"error_code": error.code, "message": str(error)}, error.status)
    except web.HTTPException as error:
        return _answer({"error_code": error.status, "message": f"HTTP {error.status} {error.reason}"}, error.status)
    except OSError as error:
        logger.error("%s %s: cannot write: %s", request.method, request.path, error.strerror)
        return _answer({"error_code": 50001, "message": "Error in the backend data store"}, 500)
    except Exception as error:  # noqa: BLE001 - the boundary: the client gets an answer, the log the reason
        logger.error("%s %s failed: %s: %s", request.method, request.path, type(error).__name__, error)
        return _answer({"error_code": 50001, "message": "Internal error, see the registry's log"}, 500)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise RegistryError(400, 400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RegistryError(422, 422, "the body must be a JSON object")
    return body


async def _schema_text(request: web.Request) -> str:
    body = await _body(request)
    text = body.get("schema")
    if not isinstance(text, str) or not text:
        raise RegistryError(422, 42201, "Empty schema: the body needs a string field 'schema'")
    if body.get("schemaType", "AVRO") not in ("AVRO", None):
        raise RegistryError(422, 42201, f"Invalid schema type {body['schemaType']}: this registry holds AVRO only")
    if body.get("references"):
        raise RegistryError(422, 42201, "Invalid schema: this registry does not resolve references")
    if body.get("id", -1) not in (-1, None):
        raise RegistryError(422, 42205, "an id can only be given in import mode, which this registry does not have")
    return text


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def _deleted_only(request: web.Request) -> bool:
    # Confluent's interface has the first name, its Python client sends the second.
    return _flag(request, "deletedOnly") or _flag(request, "deleted_only")


def _page(request: web.Request, items: list[Any]) -> web.Response:
    """The part of a list that `offset` and `limit` ask for; a negative limit is none."""
    try:
        offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", -1))
    except ValueError:
        raise RegistryError(422, 422, "offset and limit must be numbers") from None
    start = max(offset, 0)
    return _answer(items[start:] if limit < 0 else items[start : start + limit])


def _schema_id(request: web.Request) -> int:
    text = request.match_info["id"]
    if not text.isdecimal() or int(text) >= 2**31:
        raise RegistryError(404, 40403, f"Schema {text} not found")
    return int(text)


@routes.get("/")
async def root(request: web.Request) -> web.Response:
    return _answer({})


@routes.get("/schemas/types")
async def schema_types(request: web.Request) -> web.Response:
    return _answer(["AVRO"])


@routes.get("/contexts")
async def contexts(request: web.Request) -> web.Response:
    """There is the default context alone."""
    return _page(request, ["."])


@routes.get("/schemas/guids/{guid}")
async def schema_by_guid(request: web.Request) -> web.Response:
    raise RegistryError(404, 40403, f"Schema {request.match_info['guid']} not found: this registry gives no GUIDs")


@routes.get("/schemas/ids/{id}")
async def schema_by_id(request: web.Request) -> web.Response:
    return _answer({"schema": request.app[STORE].text(_schema_id(request))})


@routes.get("/schemas/ids/{id}/schema")
async def schema_text_by_id(request: web.Request) -> web.Response:
    return web.Response(text=request.app[STORE].text(_schema_id(request)), content_type=CONTENT_TYPE)


@routes.get("/schemas/ids/{id}/subjects")
async def subjects_of_schema(request: web.Request) -> web.Response:
    uses = request.app[STORE].uses(_schema_id(request), _flag(request, "deleted"))
    return _page(request, sorted({subject for subject, _ in uses}))


@routes.get("/schemas/ids/{id}/versions")
async def versions_of_schema(request: web.Request) -> web.Response:
    uses = request.app[STORE].uses(_schema_id(request), _flag(request, "deleted"))
    return _page(request, [{"subject": subject, "version": version} for subject, version in uses])


@routes.get("/subjects")
async def subjects(request: web.Request) -> web.Response:
    store, prefix = request.app[STORE], request.query.get("subjectPrefix", "")
    names = store.subjects(_flag(request, "deleted") or _deleted_only(request))
    if _deleted_only(request):
        alive = set(store.subjects())
        names = [name for name in names if name not in alive]
    return _page(request, [name for name in names if name.startswith(prefix)])


@routes.get("/subjects/{subject:[^/]+}/versions")
async def versions(request: web.Request) -> web.Response:
    store, name = request.app[STORE], request.match_info["subject"]
    if not _deleted_only(request):
        return _page(request, store.versions(name, _flag(request, "deleted")))
    alive = set(store.versions(name)) if name in store.subjects() else set()
    return _page(request, [number for number in store.versions(name, True) if number not in alive])


@routes.post("/subjects/{subject:[^/]+}/versions")
async def register(request: web.Request) -> web.Response:
    text = await _schema_text(request)
    return _answer({"id": request.app[STORE].register(request.match_info["subject"], text)})


@routes.post("/subjects/{subject:[^/]+}")
async def lookup(request: web.Request) -> web.Response:
    store, name = request.app[STORE], request.match_info["subject"]
    version = store.lookup(name, await _schema_text(request), _flag(request, "deleted"))
    return _answer(_described(store, name, version.number, version.schema_id))


def _described(store: SchemaStore, name: str, number: int, schema_id: int) -> dict[str, Any]:
    return {"subject": name, "version": number, "id": schema_id, "schema": store.text(schema_id)}


@routes.get("/subjects/{subject:[^/]+}/versions/{version}")
async def version_of_subject(request: web.Request) -> web.Response:
    store, name = request.app[STORE], request.match_info["subject"]
    version = store.version(name, request.match_info["version"], _flag(request, "deleted"))
    return _answer(_described(store, name, version.number, version.schema_id))


@routes.get("/subjects/{subject:[^/]+}/versions/{version}/schema")
async def schema_of_version(request: web.Request) -> web.Response:
    store = request.app[STORE]
    version = store.version(request.match_info["subject"], request.match_info["version"], _flag(request, "deleted"))
    return web.Response(text=store.text(version.schema_id), content_type=CONTENT_TYPE)


@routes.get("/subjects/{subject:[^/]+}/versions/{version}/referencedby")
async def referenced_by(request: web.Request) -> web.Response:
    request.app[STORE].version(request.match_info["subject"], request.match_info["version"])
    return _answer([])


@routes.get("/subjects/{subject:[^/]+}/metadata")
async def latest_with_metadata(request: web.Request) -> web.Response:
    raise RegistryError(404, 40401, f"No schema of '{request.match_info['subject']}' has metadata: none is kept here")


@routes.delete("/subjects/{subject:[^/]+}")
async def delete_subject(request: web.Request) -> web.Response:
    deleted = request.app[STORE].delete_subject(request.match_info["subject"], _flag(request, "permanent"))
    return _answer(deleted)


@routes.delete("/subjects/{subject:[^/]+}/versions/{version}")
async def delete_version(request: web.Request) -> web.Response:
    deleted = request.app[STORE].delete_version(
        request.match_info["subject"], request.match_info["version"], _flag(request, "permanent")
    )
    return _answer(deleted)


@routes.post("/compatibility/subjects/{subject:[^/]+}/versions")
@routes.post("/compatibility/subjects/{subject:[^/]+}/versions/{version}")
async def compatibility(request: web.Request) -> web.Response:
    faults = request.app[STORE].compatibility(
        request.match_info["subject"], await _schema_text(request), request.match_info.get("version")
    )
    body: dict[str, Any] = {"is_compatible": not faults}
    if _flag(request, "verbose"):
        body["messages"] = faults
    return _answer(body)


@routes.get("/config")
@routes.get("/config/{subject:[^/]+}")
async def config(request: web.Request) -> web.Response:
    subject = request.match_info.get("subject")
    own = subject is not None and not _flag(request, "defaultToGlobal")
    return _answer({"compatibilityLevel": request.app[STORE].level(subject, own=own)})


@routes.put("/config")
@routes.put("/config/{subject:[^/]+}")
async def set_config(request: web.Request) -> web.Response:
    body = await _body(request)
    unknown = [name for name, value in body.items() if value is not None and name != "compatibility"]
    if unknown:
        raise RegistryError(422, 422, f"this registry has no setting {unknown[0]!r}, only 'compatibility'")
    level = str(body.get("compatibility")).upper()
    request.app[STORE].set_level(request.match_info.get("subject"), level)
    return _answer({"compatibility": level})


@routes.delete("/config")
@routes.delete("/config/{subject:[^/]+}")
async def delete_config(request: web.Request) -> web.Response:
    return _answer({"compatibilityLevel": request.app[STORE].delete_level(request.match_info.get("subject"))})


@routes.get("/mode")
@routes.get("/mode/{subject:[^/]+}")
async def mode(request: web.Request) -> web.Response:
    subject = request.match_info.get("subject")
    own = subject is not None and not _flag(request, "defaultToGlobal")
    return _answer({"mode": request.app[STORE].mode(subject, own=own)})


@routes.put("/mode")
@routes.put("/mode/{subject:[^/]+}")
async def set_mode(request: web.Request) -> web.Response:
    wanted = str((await _body(request)).get("mode")).upper()
    request.app[STORE].set_mode(request.match_info.get("subject"), wanted)
    return _answer({"mode": wanted})


@routes.delete("/mode/{subject:[^/]+}")
async def delete_mode(request: web.Request) -> web.Response:
    return _answer({"mode": request.app[STORE].delete_mode(request.match_info["subject"])})
