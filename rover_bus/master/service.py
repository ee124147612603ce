"""The master as a service: its decider behind the shared shell, on a bus. `cli/serve.py` runs it; so does the simulation."""

from __future__ import annotations

from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Message
from rover_bus.events.codec import decode
from rover_bus.events.deciding import ServiceProcess, Wiring
from rover_bus.events.errors import BadMessage
from rover_bus.events.log import LogBatch
from rover_bus.events.requests import METHOD_OF, METHODS, AnyRequest, RefusedReply
from rover_bus.events.settings import DEFAULTS, Settings
from rover_bus.events.shell import Shell
from rover_bus.master.decider import MasterDecider
from rover_bus.master.fences import refusal
from rover_bus.master.spans import MasterSpans


class Requests:
    """How a master reads requests, names them and refuses them."""

    def __init__(self, decider: MasterDecider) -> None:
        self._decider = decider

    def read(self, message: Message) -> AnyRequest:
        """Decode a request by its method; raises BadMessage for anything else."""
        parsed = subjects.parse(message.subject)
        method = METHODS.get(parsed.kind) if parsed is not None else None
        if method is None:
            raise BadMessage(f"no method {message.subject!r}")
        return decode(message.body, method)

    def name_of(self, request: AnyRequest) -> str:
        return f"{METHOD_OF[type(request)]} of {request.member}"

    def refuse(self, code: str, text: str) -> RefusedReply:
        return refusal(self._decider.state, code, text)


def wiring(job: str, settings: Settings = DEFAULTS) -> Wiring:
    """What a master serves and follows."""
    return Wiring(
        log_subject=subjects.job_log(job),
        leader_key=job,
        job=job,
        batch_type=LogBatch,
        follows=[
            subjects.job_facts(job, "job.submitted"),
            subjects.job_facts(job, "job.stop_requested"),
            subjects.job_facts(job, "job.pause_requested"),
            subjects.job_facts(job, "job.resume_requested"),
            subjects.job_facts(job, "plan.proposed"),
            subjects.job_facts(job, "plan.approved"),
            subjects.job_facts(job, "plan.rejected"),
            subjects.job_facts(job, "plan.mode_set"),
            subjects.job_facts(job, "slots.move_requested"),
            subjects.job_facts(job, "checkpoint.requested"),
            subjects.job_facts(job, "members.unheard"),
            subjects.host_facts(fact="exited"),
            subjects.host_facts(fact="leaving"),
            subjects.host_facts(fact="left"),
            subjects.host_facts(fact="registered"),
            subjects.host_facts(fact="program_refused"),
            subjects.host_facts(fact="program_mended"),
            subjects.host_facts(fact="adjust_refused"),
            subjects.host_facts(fact="member_taken"),
            subjects.host_facts(fact="member_stalled"),
            subjects.host_facts(fact="part_digested"),
            subjects.host_facts(fact="part_mirrored"),
            subjects.host_facts(fact="part_persisted"),
            subjects.host_facts(fact="part_failed"),
            subjects.host_facts(fact="manifest_written"),
            subjects.host_facts(fact="storage_searched"),
        ],
        publishes=[subjects.job_facts(job)],
        purges=[subjects.job_facts(job)],
        begins=subjects.job_facts(job),
        spans=lambda decider: MasterSpans(job, lambda: decider.state),
        keep=settings.retention,
        leader_ttl_s=settings.leadership.master_ttl_s,
        service=f"rover-master-{job}",
        endpoints=lambda term: [subjects.rpc(job, term, method) for method in METHODS],
        metadata={"job": job},
    )


def build_master(
    bus: Bus,
    job: str,
    process: ServiceProcess,
    *,
    settings: Settings = DEFAULTS,
    decider_type: type[MasterDecider] = MasterDecider,
    shell_type: type[Shell] = Shell,
) -> tuple[Shell, MasterDecider]:
    """Return a master ready to run (`await shell.run()`) and its decider, to look at.

    The two types are replaced where a test shows which history breaks a master without one of its rules.
    """
    decider = decider_type(job)
    return shell_type(bus, decider, wiring(job, settings), process, Requests(decider)), decider
