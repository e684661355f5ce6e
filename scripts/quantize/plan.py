"""Chooses the type of each matrix of a GGUF file: more bits for those whose errors cost most."""

from collections.abc import Iterable, Mapping, Sequence

from gguf import GGMLQuantizationType

from scripts.quantize.grids import FORMS, Form

MOST_BITS = 5.0  # most bits of a weight on average, over all matrices
LADDERS = {  # types by ascending bits; a matrix's number of inputs is a multiple of the key
    256: ("Q4_K", "Q5_K", "Q6_K"),
    32: ("IQ4_NL", "Q5_0", "Q8_0"),
}
# Kinds of matrices, and the rung of the ladder to take if bits are left; first those whose errors
# cost most per bit (docs/settings.md). Kinds of a line are multiplied together, so share a form.
UPGRADES = (
    (("attn_v",), 2),
    (("token_embd", "output"), 1),
    (("attn_q", "attn_k"), 1),
    (("attn_output",), 1),
    (("ffn_down", "ffn_down_exps"), 1),
    (("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps"), 1),
    (("attn_output",), 2),
    (("ffn_down", "ffn_down_exps"), 2),
)
Sizes = Mapping[str, tuple[int, int]]  # number of weights and inputs of each matrix, by its name
Plan = Mapping[str, Form]


def planned(sizes: Sizes) -> dict[str, Form]:
    """Returns the form of each matrix, by its name in the file."""
    ladders = {name: _ladder(inputs) for name, (_, inputs) in sizes.items()}
    plan = {name: ladder[0] for name, ladder in ladders.items()}
    left = MOST_BITS * sum(count for count, _ in sizes.values())
    left -= sum(form.bits * sizes[name][0] for name, form in plan.items())
    for kinds, step in UPGRADES:
        for names in _by_layer(sizes, kinds):
            wanted = {name: ladders[name][step] for name in names}
            cost = sum(
                (form.bits - plan[name].bits) * sizes[name][0] for name, form in wanted.items()
            )
            if cost <= left:
                plan |= wanted
                left -= cost
    return plan


def _by_layer(sizes: Sizes, kinds: Sequence[str]) -> Iterable[list[str]]:
    """Returns the names of these kinds of matrices, a list for each layer."""
    found: dict[str, list[str]] = {}
    for name in sizes:
        layer, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind in kinds:
            found.setdefault(layer, []).append(name)
    return found.values()


def average_bits(sizes: Sizes, plan: Plan) -> float:
    weights = sum(sizes[name][0] for name in plan)
    return sum(form.bits * sizes[name][0] for name, form in plan.items()) / weights


def _ladder(inputs: int) -> list[Form]:
    names = next(names for multiple, names in LADDERS.items() if inputs % multiple == 0)
    return [FORMS[GGMLQuantizationType[name]] for name in names]
