"""Settings of logs, metrics, traces and the cluster page."""

from pydantic import BaseModel, Field

from common.logs import LogFormat, LogLevel


class WatchSettings(BaseModel):
    """Immutable."""

    log_level: LogLevel = Field("INFO", description="Least severe level that is logged.")
    log_format: LogFormat = Field("text", description="Shape of a log line.")
    vllm_metrics: bool = Field(True, description="Publish metrics under vLLM's names too.")
    otel_exporter_otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="Where traces go by OTLP/HTTP, as in http://collector:4318.",
    )
    otel_service_name: str = Field("hearth", description="Name of this process in traces.")
    cluster_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$",
        max_length=2048,
        description="Where a cluster's controller listens: the dashboard then shows what it does.",
    )
