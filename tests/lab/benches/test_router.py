"""The labelled messages of `make bench-router`, and what the example bundles make of them."""

from collections import Counter

import pytest

from inference_api.bundle.router import MemberRouter
from lab.benches.router.bench import BUNDLES, experts_of, labelled_messages
from lab.kit.servers import ROOT


def test_each_label_has_messages_enough() -> None:
    messages = labelled_messages()
    counts = Counter(message.expert for message in messages)
    assert set(counts) == {"sums", "records", "sql", "facts", "general"}
    assert min(counts.values()) >= 30
    assert len({message.text.casefold() for message in messages}) == len(messages)


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_router_is_not_asked_what_it_has_learned(bundle: str) -> None:
    learned = {
        text.casefold() for texts in experts_of(ROOT / "models" / bundle).values() for text in texts
    }
    assert not learned & {message.text.casefold() for message in labelled_messages()}


@pytest.mark.parametrize(("bundle", "general"), BUNDLES.items())
def test_the_router_of_an_example_bundle_finds_the_experts(bundle: str, general: str) -> None:
    router = MemberRouter.of(experts_of(ROOT / "models" / bundle), 0.35, general)
    expert_by_label = {"facts": "hearth-tiny", "general": general}
    right = [
        router.route([each.text]).member == expert_by_label.get(each.expert, each.expert)
        for each in labelled_messages()
    ]
    assert sum(right) > 0.8 * len(right)
