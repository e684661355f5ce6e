"""Building the library, and what happens where that is not possible."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from inference_api.errors import StartupError
from inference_api.kernels import build, library
from inference_api.kernels.compilers import BuildFailed, run_all
from lab.kit.servers import ROOT, TIMEOUT_S, environment, eventually

# A library that says it has two variants, or one.
SAYS_HOW_MANY = """
#ifdef UNUSED
const char* const names[] = {"1", nullptr};
#else
const char* const names[] = {"1", "2", nullptr};
#endif
#pragma GCC visibility push(default)
extern "C" const char* hearth_variant_name(int number) { return names[number]; }
extern "C" int hearth_is_supported(int number) { return 1; }
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one source, of one unit. Libraries are made in `made`, and shipped in `shipped`."""
    monkeypatch.setattr(build, "COMPILED", tmp_path / "made")
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(build, "units", lambda left_out=(): {"one": [*left_out]})
    monkeypatch.setattr(build, "variants_left_out", lambda: ["-DLEFT_OUT"])
    monkeypatch.setattr(build, "variants_unused", lambda: ["-DLEFT_OUT", "-DUNUSED"])
    monkeypatch.setattr(library, "_library", library._library.__wrapped__)
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    return source


def test_a_library_is_built_once_for_each_state_of_the_sources(source: Path) -> None:
    first = build.compiled()
    made = first.stat().st_ino
    assert build.compiled() == first == build.library_path()
    assert first.stat().st_ino == made
    source.write_text('extern "C" int one() { return 2; }')
    assert build.library_path() != first


def test_what_was_compiled_last_is_loaded(source: Path) -> None:
    first = build.compiled()
    by_another_compiler = first.with_stem(f"{first.stem[:-8]}01234567")
    by_another_compiler.write_bytes(first.read_bytes())
    os.utime(first, (1, 1))
    os.utime(by_another_compiler, (2, 2))
    assert build.library_path() == by_another_compiler
    assert build.compiled() == first
    assert build.library_path() == first


def test_one_variant_is_compiled_unless_all_are_there(source: Path) -> None:
    source.write_text(SAYS_HOW_MANY)
    best = build.compiled()
    assert library.supported_variants() == ["1"]
    every = build.compiled(build.units_of_tests())
    assert library.supported_variants() == ["1", "2"]
    assert build.compiled() == every != best


def test_where_the_best_variant_may_not_run_all_are_compiled(source: Path) -> None:
    source.write_text(SAYS_HOW_MANY.replace("return 1", "return number == 1"))
    build.compiled()
    for _ in range(2):
        assert library.supported_variants() == ["2"]


def test_old_builds_are_removed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "MAX_BUILDS", 1)
    made = []
    for number in range(build.MAX_BUILDS + 2):
        source.write_text(f'extern "C" int one() {{ return {number}; }}')
        made.append(build.compiled())
    assert set((tmp_path / "made").glob("*.so")) == set(made[2:])


def test_faulty_sources_are_reported_and_leave_nothing(source: Path, tmp_path: Path) -> None:
    source.write_text("nonsense")
    with pytest.raises(BuildFailed, match="nonsense"):
        build.library_path()
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_ended_prints_one_line_and_leaves_nothing(
    tmp_path: Path, signum: signal.Signals
) -> None:
    begun, compiler = tmp_path / "begun", tmp_path / build.COMPILERS[0]
    os.mkfifo(begun)
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo 1\necho "$@" > {begun}; sleep 600; true'
    )
    compiler.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", build.__name__],
        cwd=ROOT,
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Tests run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with begun.open() as commands:
        scratch = Path(commands.readline().split()[-1]).parent
        assert scratch.is_dir()
        process.send_signal(signum)
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    told = "The kernels were not built, because of Ctrl-C or SIGTERM.\n"
    assert (process.returncode, printed) == (1, told)
    assert not scratch.exists()


SERVER_THAT_ENDS = """
import sys
from threading import Thread
from inference_api.kernels.compilers import run_all
command = ["sh", "-c", f"echo $$ > {sys.argv[1]}; sleep 600; true"]
Thread(target=run_all, args=([command],), daemon=True).start()
print(open(sys.argv[1]).readline())
"""


def test_a_server_that_ends_while_it_compiles_waits_for_no_compiler_and_leaves_none(
    tmp_path: Path,
) -> None:
    os.mkfifo(begun := tmp_path / "begun")
    command = [sys.executable, "-c", SERVER_THAT_ENDS, str(begun)]
    pid = int(subprocess.check_output(command, cwd=ROOT, timeout=TIMEOUT_S, env=environment()))
    eventually(lambda: not Path(f"/proc/{pid}").exists(), what="the compiler has ended")


def test_a_compiler_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="nowhere"):
        run_all([[str(tmp_path / "nowhere")], ["true"]])


@pytest.mark.parametrize(
    ("flags", "left_out", "served"),
    [
        (
            "fpu avx2 fma f16c avx_vnni",
            ["avx512vnni", "avx512bf16", "amx"],
            {"avxvnni", "avxvnni_forms"},
        ),
        (
            "fpu avx fma f16c",
            ["avx2", "avxvnni", "avx512vnni", "avx512bf16", "amx"],
            {"portable", "portable_forms"},
        ),
        (
            "avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni",
            ["avxvnni", "avx512bf16", "amx"],
            {"avx512vnni", "avx512vnni_forms"},
        ),
        (
            "avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni avx512_bf16",
            ["avxvnni", "amx"],
            {"avx512bf16", "avx512vnni_forms"},  # which has the same products of integers
        ),
        (
            "avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_tile amx_int8 "
            "amx_bf16",
            ["avxvnni"],
            {"amx", "avx512bf16", "avx512vnni_forms"},  # whose products of few rows it takes
        ),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="variants of x86-64")
def test_variants_that_the_processor_cannot_run_are_left_out(
    flags: str,
    left_out: list[str],
    served: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(build, "PROCESSOR", tmp_path / "cpuinfo")
    assert build.variants_left_out() == left_out
    units = build.units(left_out)
    assert not {*left_out} & {*map(build.variant_of, units)}
    assert {"variant_portable", "variant_portable_forms"} <= units.keys()
    assert units["interface"] == [f"-DHEARTH_WITHOUT_{name.upper()}" for name in left_out]
    of_tests = build.units_of_tests()
    assert of_tests.keys() == units.keys()
    variants, serving = of_variants(units), {f"variant_{each}" for each in served}
    assert {unit for unit, added in of_tests.items() if "-Og" in added} == variants - serving
    assert of_variants(build.units(build.variants_unused())) == serving


def of_variants(units: Iterable[str]) -> set[str]:
    return {unit for unit in units if build.variant_of(unit)}


@pytest.mark.parametrize(
    ("features", "left_out"),
    [
        ("fp asimd evtstrm aes crc32", ["dotprod", "i8mm"]),
        ("fp asimd asimdhp asimddp", ["i8mm"]),
        ("fp asimd asimddp sve i8mm bf16", []),
    ],
)
def test_arm_processors_say_it_in_their_own_words(
    features: str, left_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\nFeatures\t: {features}\nCPU part\t: 0xd08\n"
    )
    monkeypatch.setattr(build, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(build, "MACHINE", "aarch64")
    assert build.variants_left_out() == left_out


def test_a_processor_that_says_nothing_gets_every_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpuinfo in (tmp_path / "none", tmp_path):
        monkeypatch.setattr(build, "PROCESSOR", cpuinfo)
        assert build.variants_left_out() == []


def test_a_shipped_library_is_not_compiled_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["build", "--beside"])
    build.main()
    [shipped] = (tmp_path / "shipped").iterdir()
    assert shipped.stem.endswith(f"-{build.MACHINE}")
    assert build.library_path() == shipped
    assert not (tmp_path / "made").exists()
    compiled = build.compiled()
    assert build.library_path() == compiled != shipped
    source.write_text('extern "C" int one() { return 2; }')
    assert build.library_path().parent == tmp_path / "made"


def test_without_an_installed_compiler_zig_compiles_for_every_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())  # as if installed
    command = build.find_compiler()
    assert command[:4] == [sys.executable, "-m", "ziglang", "c++"]
    assert command[-1] == f"{build.MACHINE}-linux-gnu.2.17"


def test_without_a_compiler_the_message_names_the_remedy(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartupError, match="pip install ziglang"):
        library.supported_variants()


def test_without_a_writable_folder_the_message_names_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(build, "COMPILED", tmp_path / "file" / "made")
    with pytest.raises(BuildFailed, match="make it writable"):
        build.library_path()


def test_variants_that_are_left_out_compile_too(tmp_path: Path) -> None:
    flags, compiled = [*build.FLAGS, "-fsyntax-only"], build.units(build.variants_left_out())
    left_out = {name: each for name, each in build.units().items() if compiled.get(name) != each}
    build.compile_units(build.find_compiler(), left_out, flags, tmp_path)
    assert not list(tmp_path.iterdir()), "only the syntax is checked"


def test_the_driver_of_the_sanitizers_and_the_emulator_compiles(tmp_path: Path) -> None:
    """`make test-kernels` and `make test-arm` run it, and `make test` does not."""
    flags = [*build.FLAGS, "-fsyntax-only"]
    build.compile_units(build.find_compiler(), {"test_driver": ()}, flags, tmp_path)


def test_tests_have_all_variants_that_linux_tells_of() -> None:
    told = {*map(build.variant_of, build.units(build.variants_left_out()))}
    assert {*library.supported_variants()} >= told - {None, "amx"}


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(StartupError, match="portable"):
        library.Kernels(1, "abacus")
