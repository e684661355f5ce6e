"""Who has to go when there is no room, by a clock of the test's own."""

import math

from common.connections.waiting import Wait
from proxy.clients.crowd import GRACE_S, RESERVED_CONNECTIONS, Crowd


class Person:
    def __init__(self, name: str, address: str = "192.0.2.1") -> None:
        self.name, self.address = name, address
        self.wait: Wait | None = None
        self.waits_since_s = 0.0
        self.deadline_s = math.inf
        self.fate = ""
        self.is_sending = False

    def expire(self) -> None:
        self.fate += "expired"

    def evict(self) -> None:
        self.fate += "evicted"


def enter(crowd: Crowd, name: str, now_s: float = 0.0, address: str = "192.0.2.1") -> Person:
    """A newcomer who has sent nothing yet."""
    person = Person(name, address)
    assert crowd.enter(person, now_s)
    crowd.wait(person, Wait.REQUEST, now_s)
    return person


def serving(crowd: Crowd, number: int) -> list[Person]:
    people = []
    for n in range(number):
        people.append(enter(crowd, f"served {n}"))
        crowd.serve(people[-1])
    return people


def test_those_go_first_who_are_answered_then_who_waited_longest_then_the_idle() -> None:
    crowd = Crowd(4, 100)
    idle, silent, later, answered = [enter(crowd, name) for name in "abcd"]
    crowd.wait(idle, Wait.NEXT_REQUEST, 0.0)
    crowd.wait(answered, Wait.CLOSE, 0.0)
    for gone in (answered, silent, later):
        enter(crowd, "newcomer", 9.0, "198.51.100.1")
        assert gone.fate == "evicted"
    assert idle.fate == ""
    assert len(crowd) == 4


def test_who_is_served_never_goes_and_places_are_kept_for_probes() -> None:
    crowd = Crowd(4, 100)
    people = serving(crowd, 4)
    assert not crowd.is_full
    late = serving(crowd, RESERVED_CONNECTIONS)
    assert crowd.is_full
    assert not crowd.enter(Person("one too many"), 0.0)
    assert [person.fate for person in people + late] == [""] * (4 + RESERVED_CONNECTIONS)
    crowd.leave(people[0])
    enter(crowd, "fits")


def test_newcomers_do_not_push_each_other_out_of_the_kept_places() -> None:
    """Many are accepted before any of them is read: /health may be among them."""
    crowd = Crowd(4, 100)
    serving(crowd, 4)
    newcomers = [enter(crowd, f"newcomer {n}", 1.0) for n in range(10)]
    assert {person.fate for person in newcomers} == {""}
    enter(crowd, "later", 1.0 + GRACE_S)
    assert newcomers[0].fate == "evicted"


def test_an_address_has_so_many_without_a_head_and_a_moment_to_send_them() -> None:
    crowd = Crowd(100, 2)
    many = [enter(crowd, str(n), now_s=n / 10) for n in range(5)]
    other = enter(crowd, "other", address="198.51.100.1")
    crowd.sweep(GRACE_S - 0.01)
    assert {person.fate for person in many} == {""}
    crowd.sweep(GRACE_S + 0.11)
    assert [person.fate for person in many] == ["evicted", "evicted", "", "", ""]
    crowd.sweep(9.0)
    assert [person.fate for person in many] == ["evicted"] * 3 + ["", ""]
    assert other.fate == ""


def test_idle_and_served_connections_of_an_address_do_not_count() -> None:
    crowd = Crowd(100, 1)
    idle, served, silent = [enter(crowd, name) for name in "abc"]
    crowd.wait(idle, Wait.NEXT_REQUEST, 0.0)
    crowd.serve(served)
    crowd.sweep(99.0)
    assert (idle.fate, served.fate, silent.fate) == ("", "", "")


def test_each_deadline_passes_once() -> None:
    crowd = Crowd(100, 100)
    due, later = enter(crowd, "due"), enter(crowd, "later")
    due.deadline_s, later.deadline_s = 1.0, 2.0
    crowd.sweep(1.5)
    crowd.sweep(1.9)
    assert (due.fate, later.fate) == ("expired", "")


def test_who_leaves_leaves_nothing_behind() -> None:
    crowd = Crowd(2, 1)
    for _ in range(10):
        person = enter(crowd, "x")
        crowd.leave(person)
        crowd.leave(person)
    assert len(crowd) == 0
    assert crowd.members() == ()
    crowd.sweep(99.0)
    assert person.fate == ""
