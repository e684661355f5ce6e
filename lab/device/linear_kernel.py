"""A product in Triton's language, which `products` measures: it serves nowhere yet."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens"])
def multiply(
    x,  # [n, inputs]
    weight,  # [outputs, inputs]
    out,  # [parts, n, outputs] float32: who reads them adds the parts in their order
    num_tokens,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    part_inputs: tl.constexpr,
    block_tokens: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inputs: tl.constexpr,
):
    """A program for each block of tokens and of outputs, and part of the inputs. Neighbours have
    the same weights, which the second finds in the card's cache."""
    token = tl.program_id(0) * block_tokens + tl.arange(0, block_tokens)
    output = tl.program_id(1) * block_outputs + tl.arange(0, block_outputs)
    part = tl.program_id(2)
    is_token, is_output = token < num_tokens, output < outputs
    of_tokens = x + token[:, None].to(tl.int64) * inputs
    of_outputs = weight + output[:, None].to(tl.int64) * inputs
    summed = tl.zeros([block_tokens, block_outputs], tl.float32)
    for begin in range(0, part_inputs, block_inputs):
        at = part * part_inputs + begin + tl.arange(0, block_inputs)
        is_in = at < inputs
        given = tl.load(of_tokens + at[None, :], is_token[:, None] & is_in[None, :], 0.0)
        by = tl.load(of_outputs + at[None, :], is_output[:, None] & is_in[None, :], 0.0)
        summed += tl.dot(given, tl.trans(by), input_precision="ieee")
    place = (part.to(tl.int64) * num_tokens + token[:, None]) * outputs + output[None, :]
    tl.store(out + place, summed, is_token[:, None] & is_output[None, :])
