"""Settings of logs, metrics, traces and the cluster page."""

from pydantic import BaseModel, Field

from common.logs import LogFormat, LogLevel


class WatchSettings(BaseModel):
    """Immutable."""

    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"
    vllm_metrics: bool = True
    otel_exporter_otlp_endpoint: str | None = Field(None, pattern="^https?://")
    otel_service_name: str = "hearth"
    cluster_url: str | None = Field(
        None, pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$", max_length=2048
    )
