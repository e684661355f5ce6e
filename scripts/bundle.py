"""`hearth bundle validate FILE` says whether a bundle can be served here, and its memory needs.

It reads only headers of files. USER_ROWS, DTYPE, KV_CACHE_DTYPE and SPECULATION_TOKENS come from
the environment, as when the bundle is served.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from inference_api.bundle import check
from inference_api.errors import StartupError
from inference_api.settings import load_settings
from inference_api.settings.bundle_file import Bundle, read_bundle

INVALID = 2  # exit status


@click.group()
def main() -> None:
    """Bundles: many experts behind one endpoint, as a YAML file lists them."""


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the answer of POST /bundle/validate.")
def validate(file: Path, as_json: bool) -> None:
    """Check FILE: exit status 0 if it can be served here, else 2."""
    try:
        settings = load_settings(bundle=None)
    except StartupError as error:
        click.echo(str(error), err=True)
        sys.exit(INVALID)
    bundle = None
    try:
        bundle = read_bundle(file)
        validation = check.check_bundle(bundle, settings)
    except StartupError as error:
        validation = check.invalid_file(error)
    click.echo(validation.model_dump_json() if as_json else "\n".join(shown(bundle, validation)))
    sys.exit(0 if validation.valid else INVALID)


def shown(bundle: Bundle | None, validation: check.Validation) -> Iterator[str]:
    """Yields lines for people: a table of members, the sums with their limits, and the findings."""
    if bundle is not None and validation.utilization is not None:
        yield from _table(bundle, validation.utilization)
    for each in validation.validations:
        if each.level == "ERROR" or each.expert is not None:
            yield f"{each.level:<6}{each.message}"
    yield "valid" if validation.valid else "not valid"


def _table(bundle: Bundle, used: check.Utilization) -> Iterator[str]:
    bytes_of = {each.name: each for each in used.experts}
    head = ("expert", "weights", "cache/row", "rows", "need", "")
    rows = [head, *(_row(bundle, index, bytes_of) for index in range(len(bundle.members)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for name, *numbers, notes in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True)]
        yield "  ".join([f"{name:<{widths[0]}}", *cells, notes]).rstrip()
    yield ""
    for limit, share in (("memory_limit", used.memory), ("fast_memory_limit", used.fast_memory)):
        percent = 100 * share.need_bytes / share.limit_bytes
        yield f"{limit:<18}{share.need_bytes} of {share.limit_bytes} bytes, {percent:.1f} %"
    yield f"{'rows.min':<18}{used.rows_needed} of USER_ROWS={used.rows_limit}"
    yield ""


def _row(bundle: Bundle, index: int, bytes_of: dict[str, check.ExpertMemory]) -> Sequence[str]:
    member = bundle.members[index]
    memory = bytes_of.get(member.name)
    numbers: list[object] = ["?", "?", member.rows.min, "?"]
    if memory is not None:
        numbers[:2] = memory.weights_bytes, memory.cache_bytes_per_row
        numbers[3] = memory.need_bytes
    notes = [
        member.quantisation,
        *["pinned"] * member.pinned,
        *["default"] * (member is bundle.default_member),
    ]
    return member.name, *map(str, numbers), ", ".join(notes)
