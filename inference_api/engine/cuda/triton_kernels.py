"""Kernels in Triton's language, which `triton_ops` launches.

Products with packed weights are in `triton_products`. A program belongs to one token and to one of
its heads or parts, and no other program writes where it writes. So programs do not wait for each
other, and a token's bits are the same whatever else is in a step. Memory is in the model's
precision, sums are float32. Every `constexpr` size belongs to the model or the cache, so no step
compiles kernels again for its number of tokens.
"""

import triton
import triton.language as tl

# Kernels are compiled without regard to values that depend on a step's number of tokens.
of_tokens = triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=["positions", "rows", "slots"],
)


@triton.jit
def added(parts, places, is_in, part_size, num_parts: tl.constexpr):
    """Returns a product's result: the sum, in order, of `parts`, which lie `part_size` apart."""
    total = tl.load(parts + places, is_in, 0.0).to(tl.float32)
    for part in tl.static_range(1, num_parts):
        total += tl.load(parts + part * part_size + places, is_in, 0.0)
    return total


@triton.jit
def normed(x, at, is_in, weight, bias, eps, size: tl.constexpr, is_rms: tl.constexpr):
    """Returns `x` [block] normalised by its mean square, and by its mean unless `is_rms`. `x` is 0
    where not `is_in`."""
    if not is_rms:
        x = tl.where(is_in, x - tl.sum(x, 0) / size, 0.0)
    x *= tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    x *= tl.load(weight + at, is_in, 0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + at, is_in, 0.0).to(tl.float32)
    return x


@of_tokens
def norm_add(
    x,  # [n, size]
    update,  # [num_parts, n, size] or None
    update_weight,  # [size] or None, and so are all weights and biases
    update_bias,
    weight,
    bias,
    total,  # [n, size], written if `update` is given
    out,  # [n, size], written if `weight` is given
    multiplier,
    eps,
    num_tokens,
    size: tl.constexpr,
    block: tl.constexpr,
    is_rms: tl.constexpr,
    num_parts: tl.constexpr,
):
    """Has a program for each token: see `Operations.norm_add`."""
    at = tl.arange(0, block)
    is_in = at < size
    places = tl.program_id(0).to(tl.int64) * size + at
    value = tl.load(x + places, is_in, 0.0).to(tl.float32)
    if update is not None:
        change = added(update, places, is_in, num_tokens * size, num_parts)
        if update_weight is not None:
            change = normed(change, at, is_in, update_weight, update_bias, eps, size, is_rms)
        rounded = (value + multiplier * change).to(total.dtype.element_ty)
        tl.store(total + places, rounded, is_in)
        value = rounded.to(tl.float32)  # normalises the same numbers that the next layer reads
    if weight is not None:
        value = normed(value, at, is_in, weight, bias, eps, size, is_rms)
        tl.store(out + places, value.to(out.dtype.element_ty), is_in)


@of_tokens
def gate(
    up,  # [num_parts, n, width]
    out,  # [n, size]
    limit,  # None: gates are not clamped
    alpha,
    num_tokens,
    width: tl.constexpr,  # `size`, or 2 `size` with gates in the first half
    size: tl.constexpr,
    activation: tl.constexpr,
    block: tl.constexpr,
    num_parts: tl.constexpr,
):
    """Has a program for each token and `block` of its outputs: see `Operations.gate`."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    is_in = at < size
    part_size = num_tokens * width
    x = added(up, token * width + at, is_in, part_size, num_parts)
    if limit is not None:
        x = tl.minimum(x, limit)
        x *= tl.sigmoid(alpha * x)
    elif activation == "silu":
        x *= tl.sigmoid(x)
    elif activation == "gelu":
        x *= 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
    elif activation == "gelu_tanh":  # (1 + tanh y) / 2 is the sigmoid of 2 y
        x *= tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif activation == "relu":
        x = tl.maximum(x, 0.0)
    else:
        tl.static_assert(activation == "relu2")
        x = tl.maximum(x, 0.0)
        x *= x
    if width > size:
        linear = added(up, token * width + size + at, is_in, part_size, num_parts)
        if limit is not None:
            linear = tl.minimum(tl.maximum(linear, -limit), limit) + 1.0
        x *= linear
    tl.store(out + token * size + at, x.to(out.dtype.element_ty), is_in)


@of_tokens
def place_heads(
    qkv,  # [num_parts, num_tokens, heads + 2 kv_heads, head_dim]
    positions,  # [n], below 0: absent
    rows,  # [n]
    slots,  # [1 or more, n], own ones first
    qk_norm,  # [heads + kv_heads, head_dim] or None
    cosines,  # [positions, rotary_dim] or None
    sines,  # like cosines
    query_scales,  # [positions] or None
    queries,  # [n or more, heads, head_dim]
    entries,  # [rows, 2, kv_heads, capacity, head_dim]
    eps,
    capacity,
    num_tokens,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    rotary_dim: tl.constexpr,  # 0: nothing is turned
    is_norm_last: tl.constexpr,
    all_heads_block: tl.constexpr,  # block for all heads if normalised as one; 0: each head alone
    block: tl.constexpr,
    num_parts: tl.constexpr,
):
    """Has a program for each token and head: heads of queries, then of keys, then of values. See
    `TokenOperations.place_heads`."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position, slot = tl.load(positions + token), tl.load(slots + token)
    row = tl.load(rows + token).to(tl.int64)
    num_normed: tl.constexpr = num_heads + num_kv_heads
    num_all: tl.constexpr = num_normed + num_kv_heads
    at = tl.arange(0, block)
    is_in = at < head_dim
    is_value = head >= num_normed
    is_norm_in = is_in & (head < num_normed)
    part_size = num_tokens * num_all * head_dim
    head_begin = (token * num_all + head) * head_dim
    unturned = added(qkv, head_begin + at, is_in, part_size, num_parts)
    x = unturned
    is_turned = at < rotary_dim
    partner_at = tl.where(at < rotary_dim // 2, at + rotary_dim // 2, at - rotary_dim // 2)
    partner = added(qkv, head_begin + partner_at, is_turned, part_size, num_parts)
    if qk_norm is not None and not is_norm_last:
        if all_heads_block > 0:
            first = tl.where(head < num_heads, 0, num_heads)
            size = tl.where(head < num_heads, num_heads, num_kv_heads) * head_dim
            places = tl.arange(0, all_heads_block)
            all_heads = (token * num_all + first) * head_dim + places
            all_x = added(qkv, all_heads, places < size, part_size, num_parts)
            factor = tl.rsqrt(tl.sum(all_x * all_x, 0) / size + eps)
        else:
            factor = tl.rsqrt(tl.sum(x * x, 0) / head_dim + eps)
        weights = qk_norm + head * head_dim
        x *= factor * tl.load(weights + at, is_norm_in, 0.0).to(tl.float32)
        is_partner_in = is_turned & (head < num_normed)
        partner *= factor * tl.load(weights + partner_at, is_partner_in, 0.0).to(tl.float32)
    if rotary_dim > 0:
        turns = tl.maximum(position, 0) * rotary_dim + at
        turned = x * tl.load(cosines + turns, is_turned, 0.0).to(tl.float32)
        turned += partner * tl.load(sines + turns, is_turned, 0.0).to(tl.float32)
        x = tl.where(is_turned, turned, x)
    if qk_norm is not None and is_norm_last:
        weight = tl.load(qk_norm + head * head_dim + at, is_norm_in, 0.0).to(tl.float32)
        x *= tl.rsqrt(tl.sum(x * x, 0) / head_dim + eps) * weight
    if query_scales is not None:
        scale = tl.load(query_scales + tl.maximum(position, 0)).to(tl.float32)
        x *= tl.where(head < num_heads, scale, 1.0)
    x = tl.where(is_value, unturned, x).to(queries.dtype.element_ty)
    tl.store(queries + (token * num_heads + head) * head_dim + at, x, is_in & (head < num_heads))
    place = (row * (2 * num_kv_heads) + head - num_heads) * capacity + slot
    is_written = (head >= num_heads) & (position >= 0)
    tl.store(entries + place * head_dim + at, x, is_in & is_written)


@of_tokens
def attend(
    queries,  # [n or more, heads, head_dim]
    positions,  # [n], below 0: absent
    rows,  # [n]
    slots,  # [num_late, n], of the last positions, the own one first
    entries,  # [rows, 2, kv_heads, capacity, head_dim]
    sums,  # [n, heads, splits, head_dim] float32: sums of values times exponentials
    totals,  # [n, heads, splits] float32: sums of exponentials
    largests,  # [n, heads, splits] float32: largest scores; exponentials are relative to them
    num_tokens,
    capacity,
    window,  # number of positions that a token sees
    scale,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    num_late: tl.constexpr,
    split: tl.constexpr,  # positions, a multiple of `block_places`
    block_groups: tl.constexpr,
    block_dims: tl.constexpr,
    block_places: tl.constexpr,
):
    """Has a program for each token, key-value head and split of the positions (from 0 on), with all
    query heads that share the key-value head. Splits that a token does not see are not written."""
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    position = tl.load(positions + token).to(tl.int32)
    row = tl.load(rows + token).to(tl.int64)
    first = tl.maximum(position - window + 1, 0)
    begin = tl.maximum(part * split, first // block_places * block_places)
    end = tl.minimum(part * split + split, position + 1)
    group = tl.arange(0, block_groups)
    dim = tl.arange(0, block_dims)
    place = tl.arange(0, block_places)
    is_group = group < num_heads // num_kv_heads
    is_dim = dim < head_dim
    heads = token * num_heads + kv_head * (num_heads // num_kv_heads) + group
    is_query = is_group[:, None] & is_dim[None, :]
    query = tl.load(queries + heads[:, None] * head_dim + dim[None, :], is_query, 0.0)
    keys = entries + (row * (2 * num_kv_heads) + kv_head) * capacity * head_dim
    values = entries + (row * (2 * num_kv_heads) + num_kv_heads + kv_head) * capacity * head_dim
    largest = tl.full([block_groups], float("-inf"), tl.float32)
    total = tl.zeros([block_groups], tl.float32)
    summed = tl.zeros([block_groups, block_dims], tl.float32)
    for start in range(begin, end, block_places):  # each block has a position that is seen
        at = start + place
        is_seen = (at >= first) & (at < end)
        back = position - at
        is_late = back < num_late
        slot = tl.load(slots + back * num_tokens + token, is_seen & is_late, 0).to(tl.int32)
        slot = tl.where(is_late, slot, at)
        of_places = slot[:, None] * head_dim + dim[None, :]
        is_held = is_seen[:, None] & is_dim[None, :]
        key = tl.load(keys + of_places, is_held, 0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        kept = tl.exp(largest - new_largest)
        shares = tl.exp(scores - new_largest[:, None])
        total = total * kept + tl.sum(shares, 1)
        value = tl.load(values + of_places, is_held, 0.0)
        weighted = tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        summed = summed * kept[:, None] + weighted
        largest = new_largest
    places = heads * tl.num_programs(2) + part
    is_written = is_group & (begin < end)
    tl.store(totals + places, total, is_written)
    tl.store(largests + places, largest, is_written)
    where = places[:, None] * head_dim + dim[None, :]
    tl.store(sums + where, summed, is_written[:, None] & is_dim[None, :])


@of_tokens
def combine(
    sums,  # written by `attend`, as are totals and largests
    totals,
    largests,
    positions,  # [n], below 0: absent
    sinks,  # [heads] or None: scores without values
    out,  # [n or more, heads, head_dim], 0 for absent tokens
    num_tokens,
    window,
    head_dim: tl.constexpr,
    num_splits: tl.constexpr,
    split: tl.constexpr,
    block_splits: tl.constexpr,
    block_dims: tl.constexpr,
):
    """Has a program for each token that `out` has room for and each head: combines all splits."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + token, token < num_tokens, -1).to(tl.int32)
    first = tl.maximum(position - window + 1, 0)
    part = tl.arange(0, block_splits)
    dim = tl.arange(0, block_dims)
    is_dim = dim < head_dim
    is_seen = (part >= first // split) & (part * split <= position)
    token_head = token * tl.num_programs(1) + head
    places = token_head * num_splits + part
    largest = tl.load(largests + places, is_seen, float("-inf"))
    top = tl.max(largest, 0)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(top, sink)
    factors = tl.where(is_seen, tl.exp(largest - top), 0.0)
    total = tl.sum(factors * tl.load(totals + places, is_seen, 0.0), 0)
    if sinks is not None:
        total += tl.exp(sink - top)
    where = places[:, None] * head_dim + dim[None, :]
    summed = tl.load(sums + where, is_seen[:, None] & is_dim[None, :], 0.0)
    result = tl.sum(factors[:, None] * summed, 0) / total
    result = tl.where(position >= 0, result, 0.0)
    tl.store(out + token_head * head_dim + dim, result.to(out.dtype.element_ty), is_dim)
