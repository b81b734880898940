"""Pen and paper: how long a step takes, and which bucket size is best, if all is even.

S bytes of gradients become ready at a steady rate during a backward of T seconds, in k equal
buckets. An all-reduce of s bytes takes a + b s seconds (:class:`minddp.cost_model.CallCost`).
The last call ends when the queue that starts with the first bucket is through, or right after
the last bucket, whichever is later; what lies beyond the end of backward is exposed:

    exposed(k) = max(T / k + k a + b S - T,  a + b S / k)

The first term grows when buckets are small (k latencies) and when they are large (nothing can
start before the first bucket is full): this is the U-curve.
"""

import math

from minddp.cost_model import CallCost, require, require_count


def exposed_seconds(total_bytes: float, backward_s: float, buckets: int, cost: CallCost) -> float:
    """Communication that backward does not hide, for ``buckets`` equal buckets.

    The simulator gives the same for :meth:`minddp.step_profile.StepProfile.even`.
    """
    require(0 <= total_bytes < math.inf, "total_bytes", ">= 0 bytes", total_bytes)
    require(0 <= backward_s < math.inf, "backward_s", ">= 0 seconds", backward_s)
    require_count("buckets", buckets)
    call = cost.seconds(total_bytes / buckets)
    queue = backward_s / buckets + buckets * call - backward_s
    return max(queue, call)


def best_bucket_bytes(total_bytes: float, cost: CallCost, backward_s: float | None = None) -> float:
    """Bucket size in bytes that exposes the least, with a real number of buckets.

    Without ``backward_s``: the rule of thumb for computation and communication that are of one
    order (T = b S), which is sqrt(S a / b); for a single link sqrt(bytes * bandwidth * latency).

    With it, the exact minimum. If the wire is slower than the backward (T <= b S), the best
    number of buckets is sqrt(T / a). If it is faster, more and smaller buckets help until the
    wire cannot keep up: k a = T - b S.

    Returns:
        At most ``total_bytes``: one bucket. 0.0 if calls have no latency.
    """
    require(0 < total_bytes < math.inf, "total_bytes", "> 0 bytes", total_bytes)
    if cost.start_s == 0:
        return 0.0
    wire_s = total_bytes * cost.s_per_byte
    if backward_s is None:
        backward_s = wire_s
    require(0 <= backward_s < math.inf, "backward_s", ">= 0 seconds", backward_s)
    buckets = max(math.sqrt(backward_s / cost.start_s), (backward_s - wire_s) / cost.start_s)
    return total_bytes / max(buckets, 1.0)
