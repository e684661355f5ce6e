"""The judge of first answers, and its rules."""

import re

import pytest

from lab.kit.answers import Prompt, Verdict, judge, read_prompts

TOLD = Prompt("facts", "What is the capital of France?", accept=r"\bParis\b")
SUM = Prompt("sums", "2+2", number=4)
DOCKER = Prompt("what is", "What is Docker?", accept="container", decline=True)
STORY = Prompt("small talk", "Tell me a short story.", accept=r"(\w+\W+){20,}")


@pytest.mark.parametrize(
    ("prompt", "answer", "verdict"),
    [
        (TOLD, "The capital of France is Paris.", Verdict.ACCEPTABLE),
        (TOLD, "paris", Verdict.ACCEPTABLE),
        (TOLD, "Parisian things are nice.", Verdict.WRONG),
        (TOLD, "I do not know that.", Verdict.WRONG),  # everybody knows it
        (TOLD, "", Verdict.EMPTY),
        (TOLD, " ... ?! ", Verdict.EMPTY),
        (TOLD, "Париж, или Paris.", Verdict.FOREIGN),
        (SUM, "2 + 2 = 4.", Verdict.ACCEPTABLE),
        (SUM, "It is 4. That is twice 2.", Verdict.ACCEPTABLE),
        (SUM, "Take 2 and add 2 more.\nThis makes 4", Verdict.ACCEPTABLE),
        (SUM, "24", Verdict.WRONG),
        (SUM, "2 + 2 = 24. Not 4, but 24.", Verdict.WRONG),
        (SUM, "four or so", Verdict.WRONG),
        (DOCKER, "Docker runs programs in containers.", Verdict.ACCEPTABLE),
        (DOCKER, "I am too small to know that.", Verdict.DECLINED),
        (DOCKER, "I don’t know what that is.", Verdict.DECLINED),
        (DOCKER, "I do not know that place.", Verdict.WRONG),
        (DOCKER, "Docker is a fruit.", Verdict.WRONG),
        (STORY, "The fox ran. " * 8, Verdict.LOOPS),
        (STORY, "and so it went on " * 6, Verdict.LOOPS),
        (STORY, "bonne histoire " + " ".join(f"mot{n} triste" for n in range(9)), Verdict.FOREIGN),
    ],
)
def test_verdicts(prompt: Prompt, answer: str, verdict: Verdict) -> None:
    assert judge(prompt, answer) is verdict


def test_a_story_with_a_refrain_is_no_loop() -> None:
    story = (
        "Once there was an owl who could not sleep in the day. It asked the bear what to do. The "
        "bear said: go and count the leaves. So it did. The owl asked the fox too. So it did."
    )
    assert judge(STORY, story) is Verdict.ACCEPTABLE


def test_numbers_may_have_commas_and_fractions() -> None:
    assert judge(Prompt("sums", "?", number=1234.5), "It is 1,234.5.") is Verdict.ACCEPTABLE


def test_there_are_two_hundred_prompts_and_none_twice() -> None:
    prompts = read_prompts()
    assert len({prompt.ask for prompt in prompts}) == len(prompts) == 200
    for prompt in prompts:
        re.compile(prompt.accept or "")
        re.compile(prompt.never or "")


def test_a_prompt_without_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="both or neither of number and accept"):
        Prompt("sums", "2+2")
