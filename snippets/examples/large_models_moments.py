"""By hand: the bytes of each moment of a step that can be its peak."""

from snippets.examples.large_models_change import STATES, Change
from snippets.examples.large_models_shape import Shape
from snippets.examples.large_models_states import PIECE


# --8<-- [start:kept]
def kept_by_token(s: Shape, change: Change) -> int:
    """Bytes that a block keeps of a token for backward, beside copies of its weights. Autocast, residuals in fp32."""
    attention = 2 * (s.width + 2 * s.kv) + 2 * s.width + 4 * s.heads  # q, k, v; the result; a logsumexp for each head
    if change.budget is not None:
        # the block's input, the roots of both norms, gate and up; at 1 also what the matmuls read: both norms' results,
        # gate times up, and the result of o_proj, which is computed again below 1
        read = 3 * 2 * s.width + 2 * s.inner if change.budget == 1 else 0
        return 4 * s.width + 8 + attention + 4 * s.inner + read
    norm = 4 * s.width + 4 + 4 * s.width  # input, root, and the input divided by it
    casts = 2 * s.width * (3 + 2)  # each of q, k, v, gate and up has its own bf16 copy of the norm's result
    gated = 2 * s.inner * 4  # gate and its silu, up, and their product
    return 2 * norm + casts + attention + gated


# --8<-- [end:kept]


# --8<-- [start:moments]
def moments(s: Shape, tokens: int, change: Change) -> dict[str, dict[str, float]]:
    """Bytes by part, in each moment of a step that can be its peak. A byte is counted in one part only."""
    every = 2.0 * (s.layers * s.block + s.embedding)  # bf16 copies of the matmuls' weights, by autocast
    copies = every if not (change.repeat or change.offload or change.budget not in (None, 1)) else 2.0 * s.embedding
    one = float(tokens * kept_by_token(s, change))
    held = 4.0 * tokens * s.width if change.repeat == "blocks" else one
    if change.repeat == "cheap":  # each block keeps its input, and what matmuls and attention gave
        held = tokens * (4.0 * s.width + 2 * (2 * s.width + 2 * s.kv) + 2 * (2 * s.width) + 4 * s.heads + 4 * s.inner)
    blocks = 0.0 if change.offload else s.layers * held
    tail = tokens * (8.0 * s.width + (4 if change.rows else 2) * s.width)  # the last norm, and what lm_head reads
    again = one if change.repeat or change.offload else 0.0  # one block is there again, and its weights' copies
    busy = again + (2.0 * s.block if again else 0) + tokens * (8.0 * s.width + 6 * s.inner)
    staging = 6 * 4.0 * min(PIECE, s.embedding) if change.states == "CPU" else 0.0
    always = {"parameters": 4.0 * s.parameters, "state": STATES[change.states] * s.parameters + staging}
    head, rest = 4.0 * s.embedding, 4.0 * (s.parameters - s.embedding * (1 if s.tied else 2))
    first = {"activations": blocks / s.layers, "copies": copies / s.layers, "temporary": busy}
    # in the first block, down_proj has its own
    to_come = 0.0 if change.release else 4.0 * (s.block - s.width * s.inner)
    if change.release:
        early = late = head if s.tied else 0.0
    else:
        early, late = head, head + rest
    end = late + (head if s.tied or change.release else 0.0) + (0.0 if s.tied or change.release else head)
    forward, backward, kept = loss_parts(s, tokens, change)
    return {
        "loss, forward": always
        | {
            "activations": blocks + tail,
            "copies": every if change.cache and change.budget is None else copies,
            "loss": forward,
        },
        "loss, backward": always | {"activations": blocks + tail, "copies": copies - kept} | backward,
        "last block, backward": always
        | {"activations": blocks, "copies": copies, "temporary": busy, "gradients": early},
        "first block, backward": always | first | {"gradients": late - to_come},
        "embedding, backward": always | {"gradients": end, "temporary": 4.0 * tokens * s.width},
        "optimizer": always | {"gradients": 0.0 if change.release else late + (0.0 if s.tied else head)},
    }


def loss_parts(s: Shape, tokens: int, change: Change) -> tuple[float, dict[str, float], float]:
    """Bytes of the loss in forward, by part in backward, and of lm_head's copy where backward does not keep it."""
    e, dx = float(s.embedding), 2.0 * tokens * s.width
    if change.fused:  # logits and their gradient in bf16; lm_head's gradient in fp32, in backward once more in bf16
        rows = min(max(1024, -(-tokens // 4)), tokens)
        return 4.0 * rows * s.words + 4 * e + dx, {"loss": 2 * dx, "gradients": 6 * e}, 2 * e
    rows = min(change.rows or tokens, tokens)
    logits = 12.0 * rows * s.words
    if not change.rows:
        return 10.0 * rows * s.words, {"loss": logits}, 0.0
    # of the last chunk: the logits beside lm_head's copy and its gradient's sum; or that sum and a part of it.
    # Autocast's cache makes one copy for all chunks, so that the sum is bf16; without it, the sum is fp32
    sums = max(logits + 4 * e, 6 * e) if change.cache else max(logits + 6 * e, 10 * e)
    return 10.0 * rows * s.words, {"loss": min(logits, sums), "gradients": sums - min(logits, sums) + 2 * dx}, 2 * e


def predicted(s: Shape, tokens: int, change: Change) -> tuple[str, float]:
    """The moment of the peak, and its bytes."""
    sums = {name: sum(parts.values()) for name, parts in moments(s, tokens, change).items()}
    highest = max(sums, key=sums.__getitem__)
    return highest, sums[highest]


# --8<-- [end:moments]
