"""A peer for tests: `runs`, ends `at its start`, or ends `at its second load`."""

import sys
import tempfile
from collections.abc import Sequence

from lab.peers.process import main


class OneTokenAStep:
    def __init__(self, model: str, most_loads: int) -> None:
        if model == "at its start":
            sys.exit("ValueError: too little memory to start\n[W] a library's last word")
        self._loads_left = 1 if model == "at its second load" else most_loads
        self._left: dict[int, int] = {}

    def add(self, user: int, prompt: Sequence[int], max_tokens: int) -> None:
        if not self._left:
            self._loads_left -= 1
        if self._loads_left < 0:
            sys.exit("ValueError: too little memory | for another load")
        self._left[user] = max_tokens

    def step(self) -> tuple[int, list[int]]:
        num_new = len(self._left)
        self._left = {user: left - 1 for user, left in self._left.items()}
        finished = [user for user, left in self._left.items() if left == 0]
        for user in finished:
            del self._left[user]
        return num_new, finished


if __name__ == "__main__":
    tempfile.mkdtemp()  # and never removes it
    main({"version": "1.0", "system": "made up"}, OneTokenAStep, most_loads=100)
