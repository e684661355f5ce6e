"""The router behind `model: "auto"`, over small sets of examples and real ones."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.bundle.router import MAX_CHARACTERS, MAX_MESSAGES, MemberRouter, Route
from inference_api.errors import StartupError

SUMS = (
    "sums and products",
    *("What is 12 plus 30?", "Add 14 and 9.", "7 x 8", "Subtract 3 from 20.", "55 + 6 = ?"),
)
SQL = (
    "SQL queries",
    "Write SQL for all customers.",
    "A query that counts orders",
    "SELECT the names from books",
    "orders per day, in SQL",
    "Query the employees whose age is over 40.",
)
MEMBERS = {"general": ("",), "sums": SUMS, "sql": SQL}
A_SUM, A_QUERY = "Please add 31 and 77.", "Write a SQL query that counts the books."
UNKNOWN = "zzz"


def router_of(threshold: float = 0.75) -> MemberRouter:
    return MemberRouter.of(MEMBERS, threshold, "general")


ROUTER = router_of()


def test_without_scikit_learn_the_start_names_the_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_api.bundle.router.find_spec", lambda _: None)
    with pytest.raises(StartupError, match=r"pip install 'hearth\[router\]'"):
        router_of()


class Recording:
    """A classifier that knows nothing and keeps what it is asked."""

    classes_ = ("a", "b")

    def __init__(self) -> None:
        self.asked: list[str] = []

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        self.asked += texts
        return np.full((len(texts), 2), 0.5)


@pytest.mark.parametrize(("message", "member"), [(A_SUM, "sums"), (A_QUERY, "sql")])
def test_a_message_goes_to_the_member_whose_examples_it_is_like(message: str, member: str) -> None:
    route = ROUTER.route([message])
    assert (route.member, route.method) == (member, "tfidf")
    assert 0.75 <= route.confidence <= 1


@pytest.mark.parametrize("messages", [[], [""], [UNKNOWN], ["   \n"]])
def test_what_no_member_is_like_goes_to_the_fallback(messages: list[str]) -> None:
    route = ROUTER.route(messages)
    assert (route.member, route.method) == ("general", "fallback")
    assert route.confidence < 0.75


def test_confidence_below_the_threshold_goes_to_the_fallback() -> None:
    confidence = ROUTER.route([A_SUM]).confidence
    assert router_of(confidence).route([A_SUM]) == Route("sums", confidence, "tfidf")
    above = float(np.nextafter(confidence, 2))
    assert router_of(above).route([A_SUM]) == Route("general", confidence, "fallback")


def test_a_conversation_keeps_its_member() -> None:
    alone = ROUTER.route([A_SUM])
    assert ROUTER.route([A_SUM, A_QUERY, A_QUERY]) == alone


def test_a_conversation_without_an_member_may_still_get_one() -> None:
    assert ROUTER.route([UNKNOWN, A_QUERY]) == ROUTER.route([A_QUERY])


def test_the_same_examples_make_the_same_router() -> None:
    messages = [A_SUM, A_QUERY, UNKNOWN, "How many orders are 3 plus 4?"]
    other = router_of()
    assert [ROUTER.route([m]) for m in messages] == [other.route([m]) for m in messages]


def test_threads_share_a_router() -> None:
    messages = [A_SUM, A_QUERY, UNKNOWN] * 40
    with ThreadPoolExecutor(4) as threads:
        routes = list(threads.map(lambda message: ROUTER.route([message]), messages))
    assert routes == [ROUTER.route([message]) for message in messages]


def test_no_more_is_read_than_the_bounds_allow() -> None:
    classifier = Recording()
    long = "start " + "x" * 1_000_000 + " end"
    MemberRouter(classifier, 0.9, "a").route([long] * 100)
    assert len(classifier.asked) == MAX_MESSAGES
    assert {len(text) for text in classifier.asked} == {MAX_CHARACTERS + 1}
    assert classifier.asked[0].startswith("start ")
    assert classifier.asked[0].endswith(" end")


def test_a_question_at_the_end_of_a_long_text_is_seen() -> None:
    assert ROUTER.route(["x " * 100_000 + A_QUERY]).member == "sql"


@pytest.mark.parametrize(
    "text",
    ["\x00", "\ud800", "🂡" * 5000, "\u202e123", "٣ + ٤", "{" * 9000, "a" * 9000, "\\", "%s {0}"],
    ids=ascii,
)
def test_hostile_text_is_routed_like_any_other(text: str) -> None:
    assert ROUTER.route([text]).member in {"general", "sums", "sql"}


@given(st.lists(st.text(), max_size=4))
def test_any_messages_have_a_route(messages: list[str]) -> None:
    route = ROUTER.route(messages)
    assert 0 <= route.confidence <= 1
    assert route.method == "tfidf" or route.member == "general"


def test_a_description_alone_is_enough() -> None:
    members = {"sums": ["adding numbers"], "sql": ["database queries"]}
    router = MemberRouter.of(members, 0.0, "sums")
    assert router.route(["queries of a database"]).member == "sql"


def test_an_member_of_which_nothing_is_said_is_only_the_fallback() -> None:
    assert router_of(0.0).route([UNKNOWN]).member in {"sums", "sql"}


@pytest.mark.parametrize("members", [{}, {"sums": SUMS}, {"sums": SUMS, "general": (" ",)}])
def test_one_member_is_no_choice(members: Mapping[str, Sequence[str]]) -> None:
    with pytest.raises(StartupError, match="fewer than two experts have a description or examples"):
        MemberRouter.of(members, 0.5, "sums")


def test_examples_without_a_word_are_refused() -> None:
    with pytest.raises(StartupError, match="add words"):
        MemberRouter.of({"a": ["!"], "b": ["?"]}, 0.5, "a")
