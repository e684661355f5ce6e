"""The settings of the API process and its models."""

from inference_api.settings.model import EMBEDDED_MODEL, ModelSettings
from inference_api.settings.server import Settings, load_settings

__all__ = ["EMBEDDED_MODEL", "ModelSettings", "Settings", "load_settings"]
