"""Parser of gpt-oss's harmony: messages with headers, in channels for thoughts, text and calls.

It is lenient with headers, which the models sometimes get wrong: a missing start, two channels,
constraints in any place, text without a header. Source: openai/harmony, docs/format.md.
"""

import re

from inference_api.tools.calls import Calls, attempt
from inference_api.tools.events import Event, TextDelta, ThoughtDelta
from inference_api.tools.formats import arguments_of
from inference_api.tools.reader import Reader, Steps

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
MARKERS = (START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS[:-1])
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.-]+)")


def harmony(reader: Reader, calls: Calls) -> Steps[None]:
    while (mark := (yield from reader.until((START, CHANNEL, MESSAGE), TextDelta))) is not None:
        start, header = reader.sent_at, ""
        if mark != MESSAGE:
            header, end = yield from reader.read_until((MESSAGE, *ENDS))
            header = mark + header
            if end != MESSAGE:
                reader.at -= len(START) if end == START else 0
                continue
        yield from _body(reader, calls, header, start)


def _body(reader: Reader, calls: Calls, header: str, start: int) -> Steps[None]:
    recipient = _RECIPIENT.search(header)
    if recipient is not None and recipient[1] in calls.schemas:
        body = arguments_of(reader, calls, recipient[1])
        if (yield from attempt(reader, calls, reader.at, body)):
            yield from reader.read_until(ENDS)
            return
    is_thought = "analysis" in header and "final" not in header
    event: type[Event] = ThoughtDelta if is_thought else TextDelta
    end = yield from reader.until(ENDS, event, trims=False)
    if end == START:
        reader.at -= len(START)
