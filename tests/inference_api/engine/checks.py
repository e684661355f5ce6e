"""The check of a single model, as a server makes it of all that it serves."""

from pathlib import Path

from inference_api.loading.checkpoint import RequestedModel, check_all
from inference_api.loading.options import EngineOptions


def check_one(model: Path | str, options: EngineOptions) -> list[str]:
    return check_all([RequestedModel(str(model), str(model), options)])
