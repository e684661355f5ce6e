import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference_api.engine.random_numbers import splitmix64, uniforms


def test_splitmix64_gives_the_published_sequence() -> None:
    states = np.full(5, 1234567, dtype=np.uint64)
    assert splitmix64(states, np.arange(5, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_largest_and_the_least_number() -> None:
    """Of seeds that `kernels/src/test_driver.cpp` draws with."""
    numbers = uniforms([0xBE12FE39FBD63F3C, 0x64166969B3969A0A], [0, 0])
    assert numbers.tolist() == [1.0, 2.0**-53]


@given(st.lists(st.tuples(st.integers(), st.integers(0, 2**20)), min_size=1, max_size=40))
def test_each_number_depends_on_its_own_seed_and_position(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*pairs, strict=True)
    together = uniforms(seeds, positions)
    alone = [uniforms([seed], [position])[0] for seed, position in pairs]
    assert together.tolist() == alone
    assert np.all((together > 0.0) & (together <= 1.0))


def test_numbers_of_neighbouring_seeds_and_positions_look_independent() -> None:
    seeds, positions = np.mgrid[0:200, 0:200]
    grid = uniforms(seeds.ravel().tolist(), positions.ravel().tolist()).reshape(200, 200)
    assert abs(grid.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02
    assert len(np.unique(grid)) == grid.size
