"""Every route as data: method, path, what it needs, what it takes and answers. Feeds server.py, openapi.py and
docs/http.md.

A job of a tenant, `TENANT/JOB`, is written `TENANT@JOB` in a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from rover_bus.web import api, streaming
from rover_bus.web.access import Need
from rover_bus.web.bodies import (
    Answered,
    ClusterShown,
    EventShown,
    HeatShown,
    JobShown,
    LanesShown,
    MemberShown,
    MemoryShown,
    PlanShown,
    ProgramShown,
    Row,
    StateShown,
    StoryStep,
    ThroughputShown,
    Word,
)
from rover_bus.web.port import Page

Handler = Callable[[Page, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a path or a query."""

    name: str
    about: str
    kind: Literal["string", "integer"] = "string"
    where: Literal["path", "query"] = "query"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One route. `answers`: the type of its body; `takes`: that of what it is sent."""

    method: Literal["GET", "POST"]
    path: str
    need: Need
    about: str
    handler: Handler
    answers: Any
    parameters: tuple[Parameter, ...] = ()
    takes: Any = None
    content: str = "application/json"

    @property
    def name(self) -> str:
        """A name for programs: `getJobPlan` of `/jobs/{job}/plans/{plan}`, `getJobPlans` of what lists them."""
        words = self.path.removeprefix(API).strip("/").split("/")
        following = [*words[1:], ""]
        named = [
            word.removesuffix("s") if after.startswith("{") else word
            for word, after in zip(words, following, strict=True)
            if not word.startswith("{")
        ]
        return self.method.lower() + "".join(word.capitalize() for word in named)


API = "/api/v1"
_JOB = Parameter("job", "A job; of a tenant TENANT@JOB.", where="path")
_OF_JOB = Parameter("job", "Of this job alone; of a tenant TENANT/JOB.")
_AT = Parameter("at", "As it was known after this sequence of the log's stream [now].", "integer")
_PLAN = Parameter("plan", "The number of a plan.", "integer", "path")

ROUTES: tuple[HttpRoute, ...] = (
    HttpRoute(
        "GET",
        f"{API}/cluster",
        "look",
        "What is there: hosts, the Brain, jobs by state.",
        api.cluster,
        ClusterShown,
    ),
    HttpRoute(
        "GET", f"{API}/jobs", "look", "All jobs, by their facts (`rover jobs`).", api.jobs, list[JobShown]
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}",
        "look",
        "One job, its progress by its own log.",
        api.job,
        JobShown,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/members",
        "look",
        "Its processes that run (`rover members`, without warm spares), with their last samples.",
        api.members,
        list[MemberShown],
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/plans",
        "look",
        "Its plans (`rover plan list`).",
        api.plans,
        list[PlanShown],
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/throughput",
        "look",
        "Throughput as it was measured, beside what the plans promised that were carried out.",
        api.throughput,
        ThroughputShown,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/lanes",
        "look",
        "A lane a member: where its time went, when it was lost and followed; what happened to the job.",
        api.lanes,
        LanesShown,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/program",
        "look",
        "Loss and metrics as the program reports them, and when the job ends by what is known.",
        api.program,
        ProgramShown,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/memory",
        "look",
        "Memory of members, their limits, and the Brain's forecast of servers.",
        api.memory,
        MemoryShown,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/heat",
        "look",
        "How much each server is asked for, and its hottest slots.",
        api.heat,
        HeatShown,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/state",
        "look",
        "Its state after a record of its log (`rover replay JOB --at SEQ`). 409: that moment is not kept.",
        api.state,
        StateShown,
        (_JOB, Parameter("at", "After this sequence of the log's stream [the newest].", "integer")),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/explanation",
        "look",
        "Why its newest plan is what it is (`rover explain`): inputs, fit, front, choice, losers.",
        api.newest_explanation,
        Row,
        (_JOB, _AT),
    ),
    HttpRoute(
        "GET",
        f"{API}/jobs/{{job}}/plans/{{plan}}",
        "look",
        "Why a plan is what it is (`rover explain JOB PLAN`).",
        api.explanation,
        Row,
        (_JOB, _PLAN, _AT),
    ),
    HttpRoute(
        "POST",
        f"{API}/jobs/{{job}}/plans/{{plan}}/approve",
        "act",
        "Let a plan that waits pass, in the name of the token (`rover plan approve`).",
        api.approve,
        Answered,
        (_JOB, _PLAN),
        Word,
    ),
    HttpRoute(
        "POST",
        f"{API}/jobs/{{job}}/plans/{{plan}}/reject",
        "act",
        "Refuse a plan that waits, in the name of the token (`rover plan reject`).",
        api.reject,
        Answered,
        (_JOB, _PLAN),
        Word,
    ),
    HttpRoute(
        "GET",
        f"{API}/events",
        "look",
        "Facts as they happened (`rover events`), the newest so many before a sequence.",
        api.events,
        list[EventShown],
        (
            _OF_JOB,
            Parameter("before", "Only before this sequence [the end].", "integer"),
            Parameter("count", "At most so many, up to 1000 [100].", "integer"),
        ),
    ),
    HttpRoute(
        "GET",
        f"{API}/events/stream",
        "look",
        "Facts as they happen, as server-sent events. An event's id is its sequence: Last-Event-ID resumes without gap or repeat.",
        streaming.stream,
        EventShown,
        (_OF_JOB, Parameter("after", "Begin behind this sequence [with what comes].", "integer")),
        content="text/event-stream",
    ),
    HttpRoute(
        "GET",
        f"{API}/events/{{event}}/story",
        "look",
        "The causes of an event and its effects (`rover story`).",
        api.story,
        list[StoryStep],
        (Parameter("event", "A sequence, an event id, or JOB@SEQUENCE.INDEX.", where="path"),),
    ),
)
