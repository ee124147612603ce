"""Who may ask for what over HTTP. Pure: fed with a request's method and headers, feeds server.py with the caller or a refusal.

A token travels in the Authorization header alone, so no browser sends it by itself. Two rules more are about browsers: a request
names a host by which it may reach us, or a foreign name that resolves to loopback would read what needs no token there; and an
action comes from our own page or from no page at all, as JSON, which no form of another site can send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from rover_bus.auth.page_tokens import PageRight, PageTokens

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
Need = Literal["nothing", "look", "act", "metrics"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `name`: of the token, "" for one that shows none."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """Why a request is not answered, with its status."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Access:
    """What is demanded. `names`: by which we are reached, besides loopback's where `free`: there looking needs no token.

    `open_metrics`: nor does scraping.
    """

    tokens: PageTokens
    names: frozenset[str] = frozenset()
    free: bool = True
    open_metrics: bool = False

    def judge(self, method: str, need: Need, headers: Mapping[str, str]) -> Caller | HttpRefusal:
        """Return who asks, or why not."""
        if need == "nothing":
            return Caller()
        if (refusal := self._refuse_host(headers)) or (refusal := _refuse_site(method, headers)):
            return refusal
        return self._judge_token(need, headers.get("Authorization", ""))

    def _refuse_host(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        try:
            named = urlsplit(f"//{headers.get('Host', '')}").hostname or ""
        except ValueError:
            named = ""
        if named in self.names or (self.free and named in LOOPBACK_NAMES):
            return None
        return HttpRefusal(
            421, "wrong_host", f"{named!r} is no name of this server: use the URL that the stack says"
        )

    def _judge_token(self, need: PageRight, header: str) -> Caller | HttpRefusal:
        scheme, _, text = header.partition(" ")
        if header and scheme.lower() != "bearer":
            return HttpRefusal(401, "no_token", "the Authorization header is not of the form `Bearer TOKEN`")
        holder = self.tokens.holder(text.strip()) if text else None
        if text and holder is None:
            return HttpRefusal(401, "bad_token", "this token is unknown: `rover auth page-token` makes one")
        if holder is not None and need in _implied(holder.rights):
            return Caller(holder.name)
        if (need == "metrics" and self.open_metrics) or (need in ("look", "metrics") and self.free):
            return Caller(holder.name if holder else "")
        if holder is None:
            return HttpRefusal(
                401, "no_token", f"this needs a token with the right to {need}: `rover auth page-token`"
            )
        return HttpRefusal(403, "missing_right", f"the token {holder.name!r} has no right to {need}")


def _implied(rights: tuple[PageRight, ...]) -> set[PageRight]:
    """Rights, with those that they imply: what may act may look, and what may look may scrape."""
    held: set[PageRight] = set(rights)
    if "act" in held:
        held.add("look")
    if "look" in held:
        held.add("metrics")
    return held


def _refuse_site(method: str, headers: Mapping[str, str]) -> HttpRefusal | None:
    """Refuse what a page of another site has a browser send, unless it only reads: what it read it may not see."""
    if method in ("GET", "HEAD"):
        return None
    if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return HttpRefusal(403, "other_site", "actions are taken from this server's own page alone")
    origin = headers.get("Origin", "")
    if origin and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower():
        return HttpRefusal(403, "other_site", "actions are taken from this server's own page alone")
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        return HttpRefusal(415, "not_json", "an action is sent as application/json")
    return None
