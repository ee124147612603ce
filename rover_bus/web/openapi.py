"""The OpenAPI document of the JSON API, from the table of routes and the types of bodies. Served, and kept as docs/openapi.json.

Fed by routes.py; a test compares what a real stack answers with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rover_bus.events.descriptions import undented
from rover_bus.web.api import SEQUENCE, TIMELINE
from rover_bus.web.bodies import Problem
from rover_bus.web.routes import ROUTES, HttpRoute

OF_TIMELINE = "0, or another number after each restore from a backup: sequences and numbers of plans are given again in each."
_REFERENCE = "#/components/schemas/{name}"
PROBLEMS = {
    "400": "Not what this route takes.",
    "401": "No token, or an unknown one.",
    "403": "The token lacks the right, or another site asks.",
    "404": "There is no such job.",
    "409": "Refused: the plan does not wait, or the moment is not kept.",
    "421": "The host that is named is none of this server's.",
    "503": "The bus is away, or not all has been read yet.",
}


def document(release: str) -> dict[str, Any]:
    """Return the document."""
    taken = [route.takes for route in ROUTES if route.takes is not None]
    types = [*dict.fromkeys([*(route.answers for route in ROUTES), *taken, Problem])]
    schemas, components = undented(msgspec.json.schema_components(types, ref_template=_REFERENCE))
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rover_bus",
            "version": release,
            "description": "What a stack shows over HTTP, and the two words that it takes. docs/design/0063 says to whom.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `rover auth page-token`. Looking needs none on loopback; acting needs one everywhere.",
                }
            },
        },
    }


def _operation(route: HttpRoute, by_type: dict[str, Any]) -> dict[str, Any]:
    answered: dict[str, Any] = {"schema": by_type[str(route.answers)]}
    if route.content == "text/event-stream":
        answered = {"schema": {"type": "string"}, "x-data": by_type[str(route.answers)]}
    asked: dict[str, Any] = {"description": "As asked.", "content": {route.content: answered}}
    asked["headers"] = {TIMELINE: {"description": OF_TIMELINE, "schema": {"type": "integer"}}}
    if route.content != "text/event-stream":
        about = "Sequence of the newest fact that was known when the answer was begun: all up to it are in the answer."
        asked["headers"] |= {SEQUENCE: {"description": about, "schema": {"type": "integer"}}}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "x-needs": route.need,
        "parameters": [
            {
                "name": each.name,
                "in": each.where,
                "required": each.where == "path",
                "description": each.about,
                "schema": {"type": each.kind},
            }
            for each in route.parameters
        ],
        "responses": {
            "200": asked,
            **{
                status: {
                    "description": about,
                    "content": {"application/json": {"schema": by_type[str(Problem)]}},
                }
                for status, about in PROBLEMS.items()
            },
        },
    }
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[str(route.takes)]}},
        }
    return operation
