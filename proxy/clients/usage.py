"""Counts the tokens of an answer while it passes through, without holding it back.

OpenAI-style answers say what they used: at the end of a JSON body, or in a stream's last event
if the client asked for that. Other streams are counted by their events, and Hearth's raw text
streams by their chunks, of which there is one per piece of text: close to tokens, not exact. What
their prompts took, Hearth says in a header.
"""

import re
from dataclasses import dataclass

# Usage stands at the end of what we read; a list of logprobs may follow it, rarely this long.
TAIL_BYTES = 8192
PROMPT_HEADER = "X-Prompt-Tokens"
# English has about four bytes to a token, JSON and other scripts differ: an estimate.
BYTES_PER_TOKEN = 4
_NUMBER = re.compile(r"[0-9]{1,9}")
# A quotation mark inside an answer's text is escaped, so a model cannot forge these.
# Of OpenAI's chats; of its responses and of Anthropic's messages, which begin with a 0.
_PROMPT = re.compile(rb'(?<!\\)"(?:prompt|input)_tokens"\s*:\s*([0-9]{1,9})')
_COMPLETION = re.compile(
    rb'(?<!\\)"(?:completion_tokens"\s*:\s*|output_tokens"\s*:\s*(?=[1-9]))([0-9]{1,9})'
)


@dataclass(frozen=True, slots=True)
class Usage:
    """`source` is "usage" when the upstream said it, "events" when we counted, "estimated" when
    the client left before there was anything to count."""

    prompt_tokens: int | None  # None: only the upstream knows
    completion_tokens: int
    source: str

    @property
    def total_tokens(self) -> int:
        return (self.prompt_tokens or 0) + self.completion_tokens


class UsageMeter:
    """Fed every chunk of one answer. Event loop only."""

    def __init__(self, content_type: str, prompt_tokens: str = "") -> None:
        """`prompt_tokens` is the upstream's header, if it sent one."""
        self._prompt_tokens = int(prompt_tokens) if _NUMBER.fullmatch(prompt_tokens) else None
        kind = content_type.partition(";")[0].strip().lower()
        self._is_event_stream = kind == "text/event-stream"
        self._is_json = kind == "application/json"
        self._num_events = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        if self._is_event_stream:
            self._num_events += chunk.count(b"data:")
        elif not self._is_json:
            self._num_events += 1
            return
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def usage(self) -> Usage | None:
        """None for a JSON body that says nothing of tokens."""
        # The first events of a response repeat what its client sent, which may read like usage.
        told = b"".join(self._tail.rsplit(b"\n\n", 3)[-3:]) if self._is_event_stream else self._tail
        completion = _last(_COMPLETION, told)
        if completion is not None:
            return Usage(_last(_PROMPT, told) or self._prompt_tokens, completion, "usage")
        if self._is_json:
            return None
        return Usage(self._prompt_tokens, self._num_events, "events")


def estimated_usage(num_bytes: int) -> Usage:
    """Usage of a request whose client left before the first byte: its prompt was, or will be,
    worked on, and the upstream had no chance to say how long it was. Of bodies of `num_bytes`."""
    return Usage(num_bytes // BYTES_PER_TOKEN, 0, "estimated")


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return int(found[-1]) if found else None
