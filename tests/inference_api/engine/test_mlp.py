"""Experts as a token chooses them, by torch and by the kernels."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_api.engine.cuda.mlp import Mixture, Mlp
from inference_api.engine.cuda.parameters import of_torch
from inference_api.loading.config import ExpertGroups, MixtureConfig
from tests.inference_api.conftest import Tiny, make_runner
from tests.inference_api.engine.steps import decode

HIDDEN = 4


def mixture(router: Tensor, experts_per_token: int, is_renormalised: bool) -> Mixture:
    """Expert e makes a one of every number, in element e."""
    config = MixtureConfig(len(router), experts_per_token, 32, is_renormalised, frozenset())

    def expert(number: int) -> Mlp:
        return lambda x: torch.eye(HIDDEN)[number].expand(len(x), -1)

    return Mixture(
        config, of_torch(router, None), [expert(number) for number in range(len(router))], 1
    )


def test_equal_experts_are_taken_from_the_first_on() -> None:
    router = torch.tensor([[1.0], [2.0], [2.0], [2.0]]).expand(-1, HIDDEN)
    shares = mixture(router, 2, is_renormalised=True)(torch.ones(3, HIDDEN), 3)
    assert shares.tolist() == [[0.0, 0.5, 0.5, 0.0]] * 3


def test_absent_tokens_pass_no_expert() -> None:
    made, given = mixture(torch.zeros(4, HIDDEN), 2, is_renormalised=True), list[int]()

    def counted(x: Tensor) -> Tensor:
        given.append(len(x))
        return x

    made = replace(made, experts=[counted] * 4, shared=torch.zeros_like)
    assert made(torch.ones(9, HIDDEN), 2)[:3].tolist() == [[1.0] * HIDDEN] * 2 + [[0.0] * HIDDEN]
    assert given == [2, 2]
    given.clear()
    made(torch.ones(9, HIDDEN), 0)
    assert given == []


def test_shares_are_of_all_experts_or_of_those_taken() -> None:
    router = torch.tensor([[0.0], [1.0], [2.0], [-1.0]]).expand(-1, HIDDEN) / HIDDEN
    powers = torch.tensor([0.0, 1.0, 2.0, -1.0]).exp()
    taken = powers * torch.tensor([0, 1, 1, 0])
    x = torch.ones(1, HIDDEN)
    torch.testing.assert_close(mixture(router, 2, False)(x, 1)[0], taken / powers.sum())
    torch.testing.assert_close(mixture(router, 2, True)(x, 1)[0], taken / taken.sum())


def by_sigmoids(logits: Tensor, bias: Tensor, groups: ExpertGroups | None = None) -> Tensor:
    """The shares of four experts, of which two are taken."""
    made = mixture(logits[:, None].expand(-1, HIDDEN) / HIDDEN, 2, is_renormalised=False)
    config = replace(made.config, scoring="sigmoid", groups=groups, scale=2.0)
    return replace(made, config=config, selection_bias=bias)(torch.ones(1, HIDDEN), 1)[0]


def test_a_bias_changes_the_choice_and_not_the_shares() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    shares = by_sigmoids(logits, torch.tensor([1.0, 0.0, 0.0, 0.5]))
    taken = torch.tensor([1, 0, 1, 0])
    torch.testing.assert_close(shares, 2.0 * logits.sigmoid() * taken)


@pytest.mark.parametrize(("num_scored", "taken"), [(1, [0, 0, 1, 1]), (2, [1, 1, 0, 0])])
def test_experts_are_of_the_group_that_is_best_as_its_kind_is_scored(
    num_scored: int, taken: list[int]
) -> None:
    logits = torch.tensor([1.0, 1.0, 2.0, -3.0])
    shares = by_sigmoids(logits, torch.zeros(4), ExpertGroups(2, 1, num_scored))
    torch.testing.assert_close(shares, 2.0 * logits.sigmoid() * torch.tensor(taken))


def test_sigmoids_of_nothing_share_nothing() -> None:
    made = mixture(torch.full((4, HIDDEN), -1000.0), 2, is_renormalised=True)
    made = replace(made, config=replace(made.config, scoring="sigmoid"))
    assert made(torch.ones(1, HIDDEN), 1).tolist() == [[0.0] * HIDDEN]


def test_what_all_tokens_share_is_added() -> None:
    router = torch.zeros(4, HIDDEN)
    made = replace(mixture(router, 2, True), shared=lambda x: 3.0 * x)
    assert made(torch.ones(1, HIDDEN), 1).tolist() == [[3.5, 3.5, 3.0, 3.0]]


def test_equal_experts_are_the_same_ones_by_the_kernels(
    tiny_model: Tiny, tmp_path: Path, engine: str
) -> None:
    """The first of some equals are taken: what the others weigh changes nothing."""
    folder = tiny_model("qwen3-moe")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    logits = []
    for _ in range(2):
        for name, tensor in tensors.items():
            if name.endswith("mlp.gate.weight"):
                tensor.zero_()
            elif ".experts." in name and int(name.split(".experts.")[1][0]) >= 3:
                torch.nn.init.normal_(tensor)
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        with torch.inference_mode():
            decoder = make_runner(tmp_path, engine, "float32", 4).decoder
            logits.append(decode(decoder, [7, 9], [0, 3], [0, 0]))
    assert torch.equal(*logits)
    assert logits[0].isfinite().all()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_token_that_is_no_number_stays_alone(number: float) -> None:
    router = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(0))
    x = torch.ones(2, HIDDEN)
    expected = mixture(router, 2, True)(x, 2)[0]
    x[1, 0] = number
    assert torch.equal(mixture(router, 2, True)(x, 2)[0], expected)
