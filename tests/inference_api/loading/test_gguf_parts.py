"""Parts of a GGUF model that was split over files: what is missing or misnamed, and the remedy."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from inference_api.errors import StartupError
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.options import EngineOptions
from tests.inference_api.engine.checks import check_one
from tests.inference_api.loading.gguf_copies import rewritten, small_gguf


def part_name(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.gguf"


def write_part(file: Path, index: int, count: int) -> None:
    """As llama.cpp writes all parts but the first: nothing but its numbers."""
    writer = GGUFWriter(file, "llama")
    writer.add_uint16("split.no", index)
    writer.add_uint16("split.count", count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def fault_of(file: Path) -> str:
    with pytest.raises(StartupError) as caught:
        read_gguf(file)
    [fault] = caught.value.faults
    return str(fault)


numbers = st.integers(2, 4).flatmap(lambda count: st.tuples(st.integers(1, count), st.just(count)))


@given(numbers, st.data())
def test_a_part_is_refused_with_all_that_is_missing(
    own: tuple[int, int], data: st.DataObject
) -> None:
    number, count = own
    others = [part_name(part, count) for part in range(1, count + 1) if part != number]
    there = data.draw(st.sets(st.sampled_from(others)))
    with TemporaryDirectory() as folder:
        for name in there:
            (Path(folder) / name).touch()
        file = Path(folder) / part_name(number, count)
        write_part(file, number - 1, count)
        fault = fault_of(file)
    assert f"it is part {number} of {count}" in fault
    assert f"llama-gguf-split --merge {part_name(1, count)} model.gguf" in fault
    needed, _, _ = fault.partition("merge all parts")
    assert [name for name in others if name in needed.partition("; ")[2]] == [
        name for name in others if name not in there
    ]


@given(numbers, st.one_of(numbers.map(lambda each: part_name(*each)), st.just("model.gguf")))
def test_a_part_of_another_name_is_refused_with_its_own(own: tuple[int, int], name: str) -> None:
    right = part_name(*own)
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        write_part(file, own[0] - 1, own[1])
        fault = fault_of(file)
    expected = "it is part" if name == right else f"name it {right}."
    assert expected in fault
    assert f"part {own[0]} of {own[1]}" in fault


@pytest.mark.parametrize(("index", "count"), [(3, 3), (7, 2)])
def test_numbers_that_no_part_can_have_are_refused(index: int, count: int, tmp_path: Path) -> None:
    file = tmp_path / part_name(1, count)
    write_part(file, index, count)
    assert f"split.no={index} and split.count={count}; get it again" in fault_of(file)


@pytest.mark.parametrize("count", [0, 1])
def test_a_model_that_was_merged_is_whole(count: int, tmp_path: Path) -> None:
    """llama.cpp leaves a count of 0 behind."""
    file = rewritten(
        small_gguf(tmp_path),
        tmp_path / "merged.gguf",
        lambda metadata: metadata.update({"split.count": count}),
    )
    assert check_one(file, EngineOptions(device="cpu", max_rows=1)) == []
