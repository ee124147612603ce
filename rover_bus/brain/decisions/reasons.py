"""Reason constants: every decision, every refusal and every loser names one.

Fed by nothing, used by all decisions, printed by `explain`. Constants, so that a user can search for them and programs need
not parse text (design §2, principle 7).
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a plan was chosen, left, refused or taken back."""

    # chosen
    MORE_THROUGHPUT = "more_throughput"
    LESS_COST = "less_cost"
    LESS_MEMORY = "less_memory"  # than its limit, to the end, and others want it
    BEST_VALUE_UNDER_CAPACITY = "best_value_under_capacity"
    WARM_START = "warm_start"
    COLD_START = "cold_start"
    PROBE = "probe"
    CORES_USED_UP = "cores_used_up"
    ASKED = "asked"  # by a person
    TRIAL = "trial"  # asked by a person, and judged like a plan of the Brain (plan_facts.TRIAL)
    OPTIMUS_MARGINAL_GAIN = "optimus_marginal_gain"
    ROOM_AGAIN = "room_again"
    # left as it is
    KEEP = "keep"
    DEAD_BAND = "dead_band"
    COOLDOWN = "cooldown"
    CHANGE_IN_FLIGHT = "change_in_flight"
    DECLINED = "declined"  # observed or rejected a while ago
    PAUSED = "paused"
    FROZEN = "frozen"  # by a window that a person set
    JOB_IS_OVER = "job_is_over"
    WAITS_FOR_ROOM = "waits_for_room"  # others shrink first
    NOT_ENOUGH_SAMPLES = "not_enough_samples"
    # losers
    LESS_GAIN = "less_gain"  # cheaper, but the step beyond it still pays
    TOO_DEAR = "too_dear"  # faster, but its last step does not pay
    NO_CAPACITY = "no_capacity"
    UNCERTAIN = "uncertain"
    # refused
    QUOTA_EXCEEDED = "quota_exceeded"
    LIMIT_EXCEEDED = "limit_exceeded"
    LARGER_THAN_CLUSTER = "larger_than_cluster"
    CONSTRAINED_BY_USER = "constrained_by_user"
    DOES_NOT_FIT_ANY_NODE = "does_not_fit_any_node"
    BELOW_LEAST = "below_least"  # fewer members of its start could run than are of use: it is withdrawn
    # after the change
    GAIN_CONFIRMED = "gain_confirmed"
    GAIN_TOO_SMALL = "gain_too_small"
    THROUGHPUT_FELL = "throughput_fell"
    UNSETTLED = "unsettled"  # what it brought cannot be told
    NEVER_LIVE = "never_live"  # its members did not come
    # remedies
    STRAGGLER_SMALLER_LEASES = "straggler_smaller_leases"
    STRAGGLER_HOLDS_UP_ALL = "straggler_holds_up_all"  # of a synchronous job: a smaller share would help none
    HOST_SLOW = "host_slow"
    STRAGGLER_REPLACE = "straggler_replace"
    SLOWEST_REPLACE = (
        "slowest_replace"  # of a synchronous job: slower than its peers for good, and all wait for it
    )
    HOT_SERVER_MOVE_SLOTS = "hot_server_move_slots"
    HOT_SERVER_ADD_CORES = "hot_server_add_cores"
    HOT_SERVER_ADD_SERVER = "hot_server_add_server"
    HOT_SERVER_FEWER_WORKERS = "hot_server_fewer_workers"
    OOM_REBALANCE_SLOTS = "oom_rebalance_slots"
    OOM_LARGER_SERVER = "oom_larger_server"
    OOM_LARGER_WORKER = "oom_larger_worker"
    OOM_MORE_SERVERS = "oom_more_servers"
    OOM_COMPRESS_ROWS = "oom_compress_rows"
    OOM_NO_ROOM = "oom_no_room"
    REPLACE_LOST = "replace_lost"
    SHRINK_AFTER_LOSS = "shrink_after_loss"
    # across jobs
    SHRUNK_FOR_NEWCOMER = "shrunk_for_newcomer"
    SHRUNK_FOR_PRIORITY = "shrunk_for_priority"
    PAUSED_FOR_PRIORITY = "paused_for_priority"
    # the end
    TARGET_REACHED = "target_reached"
    NO_MORE_GAIN = "no_more_gain"
    TARGET_OUT_OF_REACH = "target_out_of_reach"
