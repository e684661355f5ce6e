"""What is wrong with settings, in words for whoever set them."""

from typing import Any

from pydantic import ValidationError


def setting_faults(error: ValidationError) -> list[str]:
    """One for each fault: the variable, its value unless that is a secret, and what to do."""
    return [fault for detail in error.errors() for fault in _faults(dict(detail))]


def _faults(detail: dict[str, Any]) -> list[str]:
    if detail["type"] == "bundle":
        return [f"BUNDLE={detail['input']}: {fault}" for fault in detail["ctx"]["faults"]]
    return [_fault(detail)]


def _fault(detail: dict[str, Any]) -> str:
    field, *inner = detail["loc"]
    variable = str(field).upper() + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner
    )
    shown = "***" if "SECRET" in variable else repr(detail["input"])
    remedy = str(detail["msg"]).removeprefix("Value error, ")
    return f"{variable}={shown}: {remedy[0].lower()}{remedy[1:]}; correct it or unset it."
