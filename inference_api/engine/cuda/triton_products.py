"""Products with packed weights in Triton's language, which `triton_ops` launches.

Weights are read as the CPU's kernels pack them (`kernels/src/layout.h`). A group's integers are
multiplied as they are, since every precision holds them, and its sum is multiplied by its scale.
Only sums are rounded, in float32, and in one order for any number of tokens.
"""

import triton
import triton.language as tl

GROUP = tl.constexpr(32)  # inputs that share a scale
PANEL = tl.constexpr(32)  # outputs that are packed together


@triton.jit
def group_of(
    words, halves, panels, lanes, is_in, group, bits: tl.constexpr, block_outputs: tl.constexpr
):
    """Returns a group's integers [GROUP, block_outputs], and their scales [block_outputs].

    `words` are the packed blocks as int32, `halves` the same memory as float16. `panels` has the
    first block of each output's panel, and `lanes` the output's place in the panel.
    """
    quad = tl.arange(0, bits)
    field = tl.arange(0, 32 // bits)
    begin = (panels + group) * (PANEL * bits + PANEL // 2)  # a scale is half a word
    places = begin[None, :] + quad[:, None] * PANEL + lanes[None, :]
    packed = tl.load(words + places, is_in[None, :], 0)
    # Neighbouring inputs are in neighbouring bytes; an int4 byte's high half is four inputs later.
    shifts = field % 4 * 8 + field // 4 * 4
    fields = (packed[:, None, :] >> shifts[None, :, None]) & ((1 << bits) - 1)
    values = tl.reshape(fields, [GROUP, block_outputs]) - (1 << (bits - 1))
    scales = tl.load(halves + 2 * (begin + PANEL * bits) + lanes, is_in, 0.0)
    return values, scales.to(tl.float32)


@triton.jit(do_not_specialize=["num_tokens"])
def multiply(
    x,  # [n, inputs]
    words,  # see `group_of`
    halves,
    bias,  # [outputs] or None
    out,  # [parts, n, width]; readers add the parts in their order
    num_tokens,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    first_lane: tl.constexpr,  # place of the first output in its panel
    bits: tl.constexpr,
    width: tl.constexpr,
    column: tl.constexpr,  # place of the first output in `out`
    part_groups: tl.constexpr,
    block_tokens: tl.constexpr,
    block_outputs: tl.constexpr,
):
    """Has a program for each block of tokens, block of outputs and part of the inputs. Neighbouring
    programs read the same weights, and the second finds them in the card's cache."""
    token = tl.program_id(0) * block_tokens + tl.arange(0, block_tokens)
    output = tl.program_id(1) * block_outputs + tl.arange(0, block_outputs)
    part = tl.program_id(2)
    num_groups: tl.constexpr = inputs // GROUP
    is_token, is_output = token < num_tokens, output < outputs
    row = first_lane + output
    panels, lanes = row // PANEL * num_groups, row % PANEL
    of_tokens = x + token[:, None].to(tl.int64) * inputs + tl.arange(0, GROUP)[None, :]
    summed = tl.zeros([block_tokens, block_outputs], tl.float32)
    for group in range(part * part_groups, tl.minimum((part + 1) * part_groups, num_groups)):
        values, scales = group_of(
            words, halves, panels, lanes, is_output, group, bits, block_outputs
        )
        activations = tl.load(of_tokens + group * GROUP, is_token[:, None], 0.0)
        products = tl.dot(activations, values.to(activations.dtype), input_precision="ieee")
        summed += products * scales[None, :]
    if bias is not None:
        bias_values = tl.load(bias + column + output, is_output & (part == 0), 0.0)
        summed += bias_values.to(tl.float32)[None, :]
    places = (part.to(tl.int64) * num_tokens + token[:, None]) * width + column + output[None, :]
    tl.store(out + places, summed.to(out.dtype.element_ty), is_token[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def widen(
    words,  # see `group_of`
    halves,
    rows,  # [num_rows] or None: all from the first on
    out,  # [num_rows, inputs]
    num_rows,
    inputs: tl.constexpr,
    first_lane: tl.constexpr,
    bits: tl.constexpr,
    part_groups: tl.constexpr,
    block_outputs: tl.constexpr,
):
    """Unpacks numbers, with a program for each block of rows and part of the inputs."""
    at = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    part = tl.program_id(1)
    num_groups: tl.constexpr = inputs // GROUP
    is_in = at < num_rows
    row = first_lane + at if rows is None else tl.load(rows + at, is_in, 0).to(tl.int32)
    panels, lanes = row // PANEL * num_groups, row % PANEL
    of_rows = out + at[None, :].to(tl.int64) * inputs + tl.arange(0, GROUP)[:, None]
    for group in range(part * part_groups, tl.minimum((part + 1) * part_groups, num_groups)):
        values, scales = group_of(words, halves, panels, lanes, is_in, group, bits, block_outputs)
        numbers = values.to(tl.float32) * scales[None, :]
        tl.store(of_rows + group * GROUP, numbers.to(out.dtype.element_ty), is_in[None, :])
