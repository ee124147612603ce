"""How a pod ended, in the words that every platform has: whose doing it was is what counts (`node/exits.py`). Pure.

Used by platform.py once a pod is over, or gone.
"""

from __future__ import annotations

import msgspec

from rover_bus.events.identity import Exit, ExitReason
from rover_bus.kube.kinds import ContainerEnded, Pod
from rover_bus.kube.pods import ASKED, UNSTARTED, main_of
from rover_bus.node.exits import SIGTERM, classify

MOST_SIGNAL = 64
MOST_DETAIL = 500
DELETED = "its pod was deleted"
# What Kubernetes itself did to a pod, by the reason of its condition DisruptionTarget.
DISRUPTED: dict[str, ExitReason] = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
    "DeletionByTaintManager": "host_lost",
    "DeletionByPodGC": "host_lost",
}
# What a kubelet says of a pod that it takes no more, as the reason of its status.
REFUSED: dict[str, ExitReason] = {
    "Evicted": "evicted",
    "Shutdown": "evicted",
    "NodeShutdown": "evicted",
    "Preempting": "preempted",
}


def ending_of(pod: Pod, wanted_gone: str = "") -> Exit:
    """Name the end of a pod that is over. wanted_gone: why it was to leave, where its object could not be told so yet: a member
    hears it from its master as well, and may be gone before the API server answers.
    """
    notes, main = pod.metadata.annotations, main_of(pod)
    ended = main.state.terminated if main else None
    if UNSTARTED in notes:
        return _exit("never_started", notes[UNSTARTED])
    if (disrupted := _disrupted(pod)) is not None:
        return _exit(*disrupted, ended)
    if pod.status.reason in REFUSED:
        return _exit(REFUSED[pod.status.reason], f"{pod.status.reason}: {pod.status.message}", ended)
    if ended is not None and ended.started_at is not None:
        return _of_container(pod, ended, notes.get(ASKED, wanted_gone))
    if asked := notes.get(ASKED, wanted_gone):
        return _exit("drained", asked)
    detail = ended.message if ended else pod.status.message
    return _exit("never_started", detail or "it was deleted before its container ran")


def taken_away(pod: Pod) -> tuple[ExitReason, str] | None:
    """Return by what another than us begins to take a pod away, and its words; None while it does not, or it is our doing."""
    notes = pod.metadata.annotations
    if pod.metadata.deletion_timestamp is None or ASKED in notes or UNSTARTED in notes:
        return None
    return _disrupted(pod) or ("killed", DELETED)


def _disrupted(pod: Pod) -> tuple[ExitReason, str] | None:
    """Return what Kubernetes itself does to a pod, by its own constant and words."""
    why = pod.status.condition("DisruptionTarget")
    if why is None or why.reason not in DISRUPTED:
        return None
    return DISRUPTED[why.reason], f"{why.reason}: {why.message}"


def gone() -> Exit:
    """Name the end of a pod whose object is not there any more, and said nothing."""
    return Exit(reason="killed", detail="its pod was deleted, and took with it how it ended")


def _of_container(pod: Pod, ended: ContainerEnded, asked: str) -> Exit:
    """What a shell calls 128 and a number is a signal. A pod that another than us deletes is killed, however it leaves."""
    if ended.reason == "OOMKilled":
        return _exit("out_of_memory", "OOMKilled: its container had no memory left below its limit", ended)
    code = 128 - ended.exit_code if 128 < ended.exit_code <= 128 + MOST_SIGNAL else ended.exit_code
    killed = ""
    if pod.metadata.deletion_timestamp and not asked and code in (0, -SIGTERM, SIGTERM):
        killed = f"deleted: {DELETED}"
    if ASKED in pod.metadata.annotations and code == -9:
        killed = "grace: it did not leave in time"
    reason, status, signal, detail = classify(code, asked=asked, killed=killed)
    made = {"reason": reason, "status": status, "signal": signal, "detail": detail}
    return msgspec.convert(made, Exit)


def _exit(reason: ExitReason, detail: str, ended: ContainerEnded | None = None) -> Exit:
    return Exit(reason=reason, detail=detail[:MOST_DETAIL], status=ended.exit_code if ended else None)
