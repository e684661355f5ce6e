"""Building the library, and what happens where that is not possible."""

import platform
from pathlib import Path

import pytest

from inference_api.kernels import build, library


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one source, of one unit; libraries are made in the folder above its own."""
    monkeypatch.setattr(build, "FOLDERS", (tmp_path,))
    monkeypatch.setattr(build, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(build, "units", lambda *left_out: {"one": ()})
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    return source


def test_a_library_is_built_once_for_each_state_of_the_sources(source: Path) -> None:
    first = build.library_path()
    made_at = first.stat().st_mtime_ns
    assert build.library_path() == first
    assert first.stat().st_mtime_ns == made_at
    source.write_text('extern "C" int one() { return 2; }')
    assert build.library_path() != first


def test_old_builds_are_removed(source: Path, tmp_path: Path) -> None:
    made = []
    for number in range(build.MAX_BUILDS + 2):
        source.write_text(f'extern "C" int one() {{ return {number}; }}')
        made.append(build.library_path())
    assert set(tmp_path.glob("*.so")) == set(made[2:])


def test_faulty_sources_are_reported_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FOLDERS", (tmp_path / "made",))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setattr(build, "units", lambda *left_out: {"one": ()})
    (tmp_path / "one.cpp").write_text("nonsense")
    with pytest.raises(build.BuildFailed, match="nonsense"):
        build.library_path()
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.parametrize(
    ("flags", "left_out"),
    [
        ("fpu avx2 fma f16c avx_vnni", ["avx512vnni", "amx"]),
        ("fpu avx fma f16c", ["avx2", "avxvnni", "avx512vnni", "amx"]),
        ("avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni", ["avxvnni", "amx"]),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="variants of x86-64")
def test_variants_that_the_processor_cannot_run_are_left_out(
    flags: str, left_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(build, "PROCESSOR", tmp_path / "cpuinfo")
    assert build.variants_left_out() == left_out
    units = build.units(left_out)
    assert not {f"variant_{name}" for name in left_out} & set(units)
    assert "variant_portable" in units
    assert units["interface"] == [f"-DHEARTH_WITHOUT_{name.upper()}" for name in left_out]


def test_a_processor_that_says_nothing_gets_every_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpuinfo in (tmp_path / "none", tmp_path):
        monkeypatch.setattr(build, "PROCESSOR", cpuinfo)
        assert build.variants_left_out() == []


def test_a_build_for_any_processor_is_not_mistaken_for_that_of_this_one(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "variants_left_out", lambda: ["one"])
    assert build.library_path() != build.library_path(for_any_processor=True)


def test_without_a_compiler_what_another_one_made_of_the_same_sources_is_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "built"
    monkeypatch.setattr(build, "FOLDERS", (tmp_path / "var", beside))
    made = build.library_path((beside,))
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert build.library_path() == made
    assert made.parent == beside
    source.write_text('extern "C" int one() { return 2; }')
    with pytest.raises(build.BuildFailed, match="no C\\+\\+ compiler"):
        build.library_path()


def test_without_a_compiler_the_message_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setattr(build, "FOLDERS", ())
    monkeypatch.setattr(library, "_library", library._library.__wrapped__)
    with pytest.raises(library.KernelsUnavailable, match="apt-get install"):
        library.supported_variants()


def test_without_a_writable_folder_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(build, "FOLDERS", (tmp_path / "file" / "a", tmp_path / "file" / "b"))
    with pytest.raises(build.BuildFailed, match="make one writable"):
        build.library_path()


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(library.KernelsUnavailable, match="portable"):
        library.Kernels(1, "abacus")
