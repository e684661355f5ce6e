"""OpenTelemetry traces that show how long each generation took in each phase.

They need an extra (`requirements-otel.txt`). At the end of a generation its request thread makes
the spans from recorded times, without the decode thread. A thread of the SDK sends them in batches.
"""

import time

from inference_api.core.record import GenerationRecord, Observer
from inference_api.settings import Settings

FLUSH_TIMEOUT_MS = 5000


def faults(settings: Settings) -> list[str]:
    """Returns why traces cannot be sent although the settings ask for them."""
    endpoint = settings.otel_exporter_otlp_endpoint
    if endpoint is None:
        return []
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        return [
            f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint} asks for traces and {error.name} is not "
            "installed; run `pip install -r requirements-otel.txt`, install Hearth with its "
            "extra 'otel', or unset it."
        ]
    return []


class Tracing(Observer):
    """Sends spans to an OTLP/HTTP endpoint. Any thread may use it between `start` and `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self) -> None:
        """Start, in the process that serves. The SDK itself reads the other OTEL_ variables."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        endpoint = str(self._settings.otel_exporter_otlp_endpoint).rstrip("/")
        resource = Resource.create({"service.name": self._settings.otel_service_name})
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("hearth")

    def stop(self) -> None:
        """Send the remaining spans."""
        self._provider.force_flush(FLUSH_TIMEOUT_MS)
        self._provider.shutdown()

    def ended(self, record: GenerationRecord) -> None:
        """Record spans for the generation and its phases, in the caller's trace or a new one."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        begun_ns = time.time_ns() - time.monotonic_ns() + int(record.begun_s * 1e9)
        generation = self._tracer.start_span(
            "generation",
            context=TraceContextTextMapPropagator().extract(record.caller.trace_context),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": record.model,
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.completion_tokens,
                "gen_ai.response.finish_reasons": [record.finish_reason],
                "hearth.request_id": record.caller.request_id,
            },
            start_time=begun_ns,
        )
        if record.finish_reason == "error":
            generation.set_status(StatusCode.ERROR)
        at_ns = begun_ns
        for name, seconds in (
            ("queue", record.queue_s),
            ("prefill", record.prefill_s),
            ("decode", record.decode_s),
        ):
            phase = self._tracer.start_span(
                name, context=set_span_in_context(generation), start_time=at_ns
            )
            at_ns += int(seconds * 1e9)
            phase.end(at_ns)
        generation.end(at_ns)
