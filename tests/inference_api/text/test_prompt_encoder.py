"""What cannot fit is refused before it is encoded; what may is encoded a few bytes at once."""

from collections.abc import Sequence
from threading import Barrier, Event, Thread

import pytest

from inference_api._mock_inference_api_server import ByteTokenizer
from inference_api.errors import PromptTooLong, QueueFull
from inference_api.text import prompt_encoder
from inference_api.text.chat_prompts import NO_EXTRAS, Extras
from inference_api.text.prompt_encoder import ByteBudget, PromptEncoder
from inference_api.tools.history import Message

CONTEXT = 16
WAIT_S = 60.0


class IdleTokenizer(ByteTokenizer):
    """Has no work for what it should not be asked."""

    bytes_per_token = 2

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError("this is encoded")

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        raise AssertionError("this is encoded")


@pytest.fixture
def encoder() -> PromptEncoder:
    return PromptEncoder(IdleTokenizer(), CONTEXT)


def test_a_text_of_more_bytes_than_the_context_holds_is_not_encoded(encoder: PromptEncoder) -> None:
    with pytest.raises(PromptTooLong) as refusal:
        encoder.encode(17 * "é")
    assert str(refusal.value) == (
        "This model's maximum context length is 16 tokens, which hold at most 32 bytes, and the "
        "prompt has 34; shorten the prompt."
    )
    with pytest.raises(AssertionError, match="encoded"):
        encoder.encode(16 * "é")


def test_messages_count_together_and_are_not_rendered(encoder: PromptEncoder) -> None:
    with pytest.raises(PromptTooLong, match="has 33;"):
        encoder.encode_chat(
            [
                {"role": "user", "content": 16 * "a"},
                {"role": "user", "content": 10 * "b", "name": "bob ann"},
            ]
        )


class WordyTokenizer(IdleTokenizer):
    """Its template writes 30 bytes more than the messages have."""

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        extras.on_rendered(30 * "t" + "".join(message["content"] for message in messages))
        return []


def test_what_a_template_makes_of_messages_counts_and_is_not_encoded() -> None:
    encoder = PromptEncoder(WordyTokenizer(), CONTEXT, ByteBudget(32, wait_s=0.01))
    for _ in range(3):
        assert encoder.encode_chat([{"role": "user", "content": "ab"}]) == []
        with pytest.raises(PromptTooLong, match="has 33;"):
            encoder.encode_chat([{"role": "user", "content": "abc"}])


def test_more_messages_than_tokens_are_not_rendered(encoder: PromptEncoder) -> None:
    with pytest.raises(PromptTooLong, match="at most 16 messages, and the prompt has 17"):
        encoder.encode_chat(17 * [{"role": "user", "content": ""}])


def test_a_budget_is_shared_by_as_many_as_it_has_room_for() -> None:
    budget, meeting = ByteBudget(3, WAIT_S), Barrier(3)

    def hold() -> None:
        with budget.share(1):
            meeting.wait(WAIT_S)

    holders = [Thread(target=hold) for _ in range(3)]
    for holder in holders:
        holder.start()
    for holder in holders:
        holder.join(WAIT_S)
    assert not meeting.broken


def test_a_share_waits_until_there_is_room_and_never_for_more_than_there_is() -> None:
    budget, has_share = ByteBudget(3, WAIT_S), Event()

    def take_more_than_there_is() -> None:
        with budget.share(100):
            has_share.set()

    with budget.share(1):
        waiting = Thread(target=take_more_than_there_is)
        waiting.start()
        assert not has_share.wait(0.05)
    assert has_share.wait(WAIT_S)
    waiting.join(WAIT_S)


def test_who_waits_too_long_is_told_to_come_back_and_takes_no_share() -> None:
    budget = ByteBudget(3, wait_s=0.01)
    with budget.share(3), pytest.raises(QueueFull) as refusal, budget.share(1):
        pass
    assert refusal.value.retry_after_s == prompt_encoder.RETRY_AFTER_S
    with budget.share(3):
        pass


def test_a_prompt_takes_its_bytes_of_the_budget_and_gives_them_back() -> None:
    encoder = PromptEncoder(IdleTokenizer(), CONTEXT, ByteBudget(4, wait_s=0.01))
    for _ in range(3):
        with pytest.raises(AssertionError, match="encoded"):
            encoder.encode("abcd")
