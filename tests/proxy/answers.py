"""Answers of engines that are not Hearth, as their APIs document them."""

import json


def event(fields: object, name: str = "") -> bytes:
    begin = f"event: {name}\n" if name else ""
    return f"{begin}data: {json.dumps(fields)}\n\n".encode()


def chat_event(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event(head | {"choices": [choice]} | more)


def usage_event(prompt: int, completion: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"id": "chatcmpl-1", "choices": [], "usage": usage, "timings": {"n": 1}})


DONE = b"data: [DONE]\n\n"


def messages_stream(*texts: str, ends: bool = True) -> bytes:
    """Anthropic's: the prompt's tokens come first, the answer's last."""
    start = {"role": "assistant", "content": [], "usage": {"input_tokens": 25, "output_tokens": 1}}
    pieces = [event({"type": "message_start", "message": start}, "message_start")]
    for text in texts:
        delta = {"type": "text_delta", "text": text}
        block = {"type": "content_block_delta", "index": 0, "delta": delta}
        pieces.append(event(block, "content_block_delta"))
    if ends:
        end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 15}}
        pieces += [event(end, "message_delta"), event({"type": "message_stop"}, "message_stop")]
    return b"".join(pieces)


def responses_stream(*texts: str, ends: bool = True) -> bytes:
    """OpenAI's Responses: what the client sent comes back first, the whole answer last."""
    echo = {"usage": None, "tools": [{"usage": {"output_tokens": 999}}], "instructions": "x" * 99}
    pieces = [event({"type": "response.created", "response": echo}, "response.created")]
    pieces += [event({"type": "response.output_text.delta", "delta": text}) for text in texts]
    if ends:
        usage = {"input_tokens": 4, "input_tokens_details": {}, "output_tokens": 7}
        output = [{"content": [{"type": "output_text", "text": "".join(texts)}]}]
        whole = {"output": output, "usage": usage, "text": {"format": {"type": "text"}}}
        pieces.append(event({"type": "response.completed", "response": whole}))
    return b"".join(pieces)
