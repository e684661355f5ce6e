"""Questions in turn: one at a time, a few wait, and more are refused at once."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from common.turns import MAX_WAITING, TooManyQuestions, Turns
from lab.kit.servers import eventually


def test_one_at_a_time_and_the_one_too_many_is_refused() -> None:
    turns, may_end, running, most = Turns(), Event(), [0], [0]

    def ask() -> None:
        with turns.taken():
            running[0] += 1
            most[0] = max(most[0], running[0])
            assert may_end.wait(60)
            running[0] -= 1

    with ThreadPoolExecutor(1 + MAX_WAITING) as pool:
        asked = [pool.submit(ask) for _ in range(1 + MAX_WAITING)]
        eventually(lambda: turns.num_requests > MAX_WAITING)
        with pytest.raises(TooManyQuestions, match="one at a time"), turns.taken():
            pass
        may_end.set()
        for each in asked:
            each.result()
    assert most == [1]
    with turns.taken():
        assert turns.num_requests == 1


def test_question_that_fails_gives_its_turn_back() -> None:
    turns = Turns()
    for _ in range(2 * MAX_WAITING):
        with pytest.raises(ZeroDivisionError), turns.taken():
            raise ZeroDivisionError
    assert turns.num_requests == 0


def test_who_has_waited_long_enough_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.turns.WAIT_S", 0.01)
    turns = Turns()
    with turns.taken():
        with pytest.raises(TooManyQuestions), turns.taken():
            pass
        assert turns.num_requests == 1
