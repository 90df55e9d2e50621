"""Attention of new tokens in Triton, over pages that a block table names."""

import triton
import triton.language as tl


# --8<-- [start:kernel]
@triton.jit
def _row(table_ptr, at, seen, head, SHARED: tl.constexpr, PAGE: tl.constexpr):
    """Where a place's vector is in the pool: the block table names its page."""
    page = tl.load(table_ptr + at // PAGE, mask=seen, other=0)
    return (page.to(tl.int64) * SHARED + head) * PAGE + at % PAGE


@triton.jit
def _keep(new_ptr, pool_ptr, scale_ptr, row, D: tl.constexpr):
    """The new vector joins the pool; in fp8 its largest number becomes the largest of fp8."""
    x = tl.load(new_ptr + tl.arange(0, D))
    if scale_ptr is not None:
        x = x.to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 448
        tl.store(scale_ptr + row, scale)
        x /= scale
    tl.store(pool_ptr + row * D + tl.arange(0, D), x.to(pool_ptr.dtype.element_ty))


@triton.jit
def _paged_kernel(
    q_ptr, k_ptr, v_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr, position_ptr, part_ptr,
    stat_ptr, count_ptr, out_ptr, q_step, k_step, v_step, most, window, scale,
    HEADS: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attention of a new token for each slot: its key and value join the pool, the pool is read in parts side by side.

    A program has one slot, one key head with its HEADS // SHARED query heads (tensor cores want 16 rows: the others
    are copies), and one part of the places. Programs without a place end at once. The last one to end adds up.
    """
    head, split, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    per: tl.constexpr = HEADS // SHARED
    d, g = tl.arange(0, D), tl.arange(0, GROUP)
    table_ptr += slot * most
    # a slot without pages reads one place of page 0, wherever it is: nobody waits for it
    position = tl.load(position_ptr + slot).to(tl.int32) * (tl.load(table_ptr) != 0).to(tl.int32)
    begin, end = tl.maximum(position + 1 - window, 0), position + 1
    width = tl.cdiv(tl.cdiv(end - begin, SPLITS), BLOCK) * BLOCK
    first, last = begin + split * width, tl.minimum(begin + (split + 1) * width, end)
    if first < last:
        if last == end:
            new = _row(table_ptr, position, True, head, SHARED, PAGE)
            _keep(k_ptr + slot * k_step + head * D, key_ptr, key_scale_ptr, new, D)
            _keep(v_ptr + slot * v_step + head * D, value_ptr, value_scale_ptr, new, D)
        tl.debug_barrier()  # this program's own stores before its loads
        q = tl.load(q_ptr + slot * q_step + (head * per + tl.minimum(g, per - 1))[:, None] * D + d[None, :])
        q = q.to(tl.float32) * (scale * 1.4426950408889634)  # softmax in powers of 2
        if key_scale_ptr is None:
            q = q.to(key_ptr.dtype.element_ty)
        elif q_ptr.dtype.element_ty != tl.float32:
            q = q.to(tl.float16)  # fp8 becomes fp16 in one instruction, bf16 takes more
        best, total = tl.full((GROUP,), -1e30, tl.float32), tl.zeros((GROUP,), tl.float32)
        acc = tl.zeros((GROUP, D), tl.float32)
        for start in range(first, last, BLOCK):
            at = start + tl.arange(0, BLOCK)
            seen = at < last
            row = _row(table_ptr, at, seen, head, SHARED, PAGE)
            k = tl.load(key_ptr + row[:, None] * D + d[None, :], mask=seen[:, None], other=0.0).to(q.dtype)
            v = tl.load(value_ptr + row[:, None] * D + d[None, :], mask=seen[:, None], other=0.0).to(q.dtype)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            if key_scale_ptr is not None:
                scores *= tl.load(key_scale_ptr + row, mask=seen, other=0.0)[None, :]
            scores = tl.where(seen[None, :], scores, -1e30)
            high = tl.maximum(best, tl.max(scores, 1))
            weights, fade = tl.exp2(scores - high[:, None]), tl.exp2(best - high)
            total = total * fade + tl.sum(weights, 1)
            if value_scale_ptr is not None:  # times 448: fp16 has no small numbers
                weights *= tl.load(value_scale_ptr + row, mask=seen, other=0.0)[None, :] * 448
            acc = acc * fade[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
            best = high
        if value_scale_ptr is not None:
            acc *= 1 / 448
        own = (slot * SHARED + head) * SPLITS * per
        stat_ptr += own
        total_ptr = stat_ptr + tl.num_programs(2) * HEADS * SPLITS
        part_ptr += own * D
        mine = split * per + g
        tl.store(part_ptr + mine[:, None] * D + d[None, :], acc, mask=(g < per)[:, None])
        tl.store(stat_ptr + mine, best, mask=g < per)
        tl.store(total_ptr + mine, total, mask=g < per)
        tl.debug_barrier()  # all of this program's stores before its count
        parts = tl.cdiv(end - begin, width)
        if tl.atomic_add(count_ptr + slot * SHARED + head, 1, sem="acq_rel") == parts - 1:
            tl.debug_barrier()
            query = tl.arange(0, QUERIES)
            each = tl.arange(0, SPLITS)[:, None]
            of_query = each * per + tl.minimum(query, per - 1)[None, :]
            # .cg: from L2, where other SMs' stores are
            highs = tl.load(stat_ptr + of_query, mask=each < parts, other=-1e30, cache_modifier=".cg")
            sums = tl.load(total_ptr + of_query, mask=each < parts, other=0.0, cache_modifier=".cg")
            shares = tl.exp2(highs - tl.max(highs, 0)[None, :])
            shares /= tl.sum(shares * sums, 0)[None, :]
            found = tl.load(
                part_ptr + of_query[:, :, None] * D + d[None, None, :],
                mask=(each < parts)[:, :, None], other=0.0, cache_modifier=".cg",
            )  # fmt: skip
            places = (slot * HEADS + head * per + query)[:, None] * D + d[None, :]
            tl.store(out_ptr + places, tl.sum(found * shares[:, :, None], 0), mask=(query < per)[:, None])
            tl.store(count_ptr + slot * SHARED + head, 0)


# --8<-- [end:kernel]
