"""Text that grows token by token is the text decoded at once, and stop strings cut it exactly."""

from hypothesis import given
from hypothesis import strategies as st

from inference_api._mock_inference_api_server import ByteTokenizer
from inference_api.text.tokens import StopMatcher, TextStream

byte_ids = st.lists(st.integers(0, 255), max_size=40)
words = st.text(alphabet="abc", max_size=30)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def chunked(items: list[int], sizes: list[int]) -> list[list[int]]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(items[at : at + size])
        at += size
    return [*chunks, items[at:]]


@given(byte_ids, st.lists(st.integers(0, 5), max_size=20))
def test_joined_pieces_equal_one_shot_decoding(ids: list[int], sizes: list[int]) -> None:
    stream = TextStream(ByteTokenizer())
    pieces = [stream.push(chunk) for chunk in chunked(ids, sizes)]
    assert "".join(pieces) + stream.finish() == ByteTokenizer().decode(ids)


@given(st.text(max_size=20))
def test_no_piece_splits_a_character(text: str) -> None:
    stream = TextStream(ByteTokenizer())
    ids = ByteTokenizer().encode(text)
    pieces = [stream.push([token_id]) for token_id in ids]
    assert "".join(pieces) + stream.finish() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@given(words, stops, st.integers(1, 3))
def test_text_is_cut_before_the_first_stop_string(text: str, stops: list[str], size: int) -> None:
    matcher = StopMatcher(stops)
    sent = "".join(matcher.push(text[at : at + size]) for at in range(0, len(text), size))
    sent += matcher.finish()
    # The cut is where a stop string first becomes complete, at its earliest beginning.
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    assert (matcher.matched is not None) is bool(ends)
    if not ends:
        assert sent == text
    else:
        assert text.startswith(sent)
        assert any(text[len(sent) :].startswith(stop) for stop in stops)
        assert not any(stop in sent for stop in stops)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("N") == ""
    assert matcher.push("X") == "ENX"
    assert matcher.push("END") == ""
    assert matcher.matched is not None
    assert matcher.push("more") == ""


def test_stop_string_is_shown_where_that_is_asked_for() -> None:
    matcher = StopMatcher(["END", "."], includes_stop=True)
    assert [matcher.push(piece) for piece in ("a E", "ND b.", "c")] == ["a ", "END", ""]
    assert matcher.matched is not None


def test_first_tokens_are_never_cut() -> None:
    matcher = StopMatcher(["."], min_tokens=2)
    pieces = [matcher.push(piece, num_tokens=1) for piece in ("a.", "b.", "c.", "d")]
    assert pieces == ["a.", "b.", "c", ""]
