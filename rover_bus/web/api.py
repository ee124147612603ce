"""The handlers of the JSON API: a request is read, the page is asked, its answer is encoded. Fed by server.py through routes.py."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from rover_bus.events.errors import InputError, Refused
from rover_bus.events.subjects import job_of_file
from rover_bus.web.bodies import Answered, Word
from rover_bus.web.port import OneJob, Page

SEQUENCE = "Rover-Sequence"  # the header of an answer that says on which newest fact it rests
TIMELINE = "Rover-Timeline"  # and in which timeline of the stack; of an action: in which the plan was seen that it is about
CALLER: web.RequestKey[str] = web.RequestKey("caller", str)
MOST_EVENTS, EVENTS = 1000, 100
MOST_REASON = 500


async def cluster(page: Page, _request: web.Request) -> web.Response:
    return answer(page.cluster())


async def jobs(page: Page, _request: web.Request) -> web.Response:
    return answer(page.jobs())


async def job(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, await one.job())


async def members(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, await one.members())


async def plans(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, one.plans())


async def throughput(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, one.throughput())


async def lanes(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, one.lanes())


async def program(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, one.program())


async def memory(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, await one.memory())


async def heat(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, await one.heat())


async def state(page: Page, request: web.Request) -> web.Response:
    return answer(await page.state(_job(request), number_of(request, "at")))


async def newest_explanation(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, await one.explanation(None))


async def explanation(page: Page, request: web.Request) -> web.Response:
    one = await _one(page, request)
    return _resting(one, await one.explanation(_plan(request)))


async def approve(page: Page, request: web.Request) -> web.Response:
    return await _say(page, request, yes=True)


async def reject(page: Page, request: web.Request) -> web.Response:
    return await _say(page, request, yes=False)


async def _say(page: Page, request: web.Request, *, yes: bool) -> web.Response:
    named, number, by = _job(request), _plan(request), request[CALLER]
    if request.headers.get(TIMELINE, str(page.timeline)) != str(page.timeline):
        raise Refused(
            f"the stack was restored from a backup since plan {number} was shown, and may have another one of that number: "
            "look at its plans again",
            "restored",
        )
    body = await request.read()
    try:
        word = msgspec.json.decode(body or b"{}", type=Word)
    except msgspec.MsgspecError as error:
        raise InputError(f"the body is not what this route takes: {error}") from None
    if len(word.reason) > MOST_REASON:
        raise InputError(f"a reason has at most {MOST_REASON} letters")
    became = await page.answer(named, number, word.reason, by, yes=yes)
    return answer(Answered(job=named, plan=number, by=by, became=became))


async def events(page: Page, request: web.Request) -> web.Response:
    before = number_of(request, "before")
    count = min(number_of(request, "count") or EVENTS, MOST_EVENTS)
    return answer(await page.past(request.query.get("job", ""), before, count))


async def story(page: Page, request: web.Request) -> web.Response:
    return answer(await page.story(request.match_info["event"]))


def answer(body: Any, status: int = 200) -> web.Response:
    """Return a value as JSON that no cache keeps."""
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


async def _one(page: Page, request: web.Request) -> OneJob:
    return await page.of_job(_job(request), number_of(request, "at"))


def _resting(one: OneJob, body: Any) -> web.Response:
    """Return what is said of one job, with the newest fact that it rests on."""
    said = answer(body)
    said.headers[SEQUENCE] = str(one.sequence)
    return said


def number_of(request: web.Request, name: str) -> int | None:
    """Return a number of the query, None where it is left out. Raises InputError."""
    text = request.query.get(name, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InputError(f"{name}={text!r}: name a number")
    return int(text) if text else None


def _job(request: web.Request) -> str:
    return job_of_file(request.match_info["job"])


def _plan(request: web.Request) -> int:
    return int(request.match_info["plan"])
