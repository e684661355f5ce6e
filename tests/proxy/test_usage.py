"""Tokens of an answer, as its own fields or its events tell them."""

import pytest

from proxy.clients.usage import Usage, UsageMeter

MESSAGE_START = (
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":4,"output_tokens":0}}}\n\n'
)
MESSAGE_DELTA = b'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'
MESSAGE_END = (
    b'event: message_delta\ndata: {"usage":{"input_tokens":4,"output_tokens":7}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
# What its client sent comes back with the first event.
RESPONSE_START = b'event: response.created\ndata: {"tools":[{"output_tokens":1}],"usage":null}\n\n'
RESPONSE_DELTA = b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
RESPONSE_END = (
    b'event: response.completed\ndata: {"text":"' + b"x" * 9000 + b'","usage":{"input_tokens":4,'
    b'"input_tokens_details":{"cached_tokens":1},"output_tokens":7,"total_tokens":11}}\n\n'
)


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (MESSAGE_START + MESSAGE_DELTA * 3 + MESSAGE_END, (4, 7, "usage")),
        (MESSAGE_START + MESSAGE_DELTA * 3, (4, 4, "events")),
        (RESPONSE_START + RESPONSE_DELTA * 3 + RESPONSE_END, (4, 7, "usage")),
        (RESPONSE_START + RESPONSE_DELTA * 3, (4, 4, "events")),
    ],
)
def test_streams_of_messages_and_responses_say_what_they_used(
    answer: bytes, counted: tuple[int, int, str]
) -> None:
    meter = UsageMeter("text/event-stream; charset=utf-8", "4")
    for at in range(0, len(answer), 100):
        meter.feed(answer[at : at + 100])
    assert meter.usage() == Usage(*counted)


def test_calls_in_a_message_are_not_its_usage() -> None:
    meter = UsageMeter("application/json")
    meter.feed(
        b'{"content":[{"input":{"output_tokens":1}}],"usage":{"input_tokens":4,"output_tokens":7}}'
    )
    assert meter.usage() == Usage(4, 7, "usage")
