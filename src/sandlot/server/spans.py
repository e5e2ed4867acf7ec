"""Spans of OpenTelemetry, sent where its own variables say (`OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`, …).

Needs the extra `otel`, and for anything but `console` the exporter that was chosen."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from sandlot import tracing
from sandlot.model import InvalidArgument

_GROUP = "opentelemetry_traces_exporter"


class Spans:
    def __init__(self, exporter: str) -> None:
        """Raises InvalidArgument for an exporter that is not installed."""
        self._provider = TracerProvider(resource=Resource.create({"service.name": "sandlot"}))
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
        self._tracer = self._provider.get_tracer("sandlot")
        tracing.install(self._make)

    @contextmanager
    def _make(self, name: str, place: str, known: Mapping[str, str]) -> Generator[str]:
        with self._tracer.start_as_current_span(name, _context(place), attributes=dict(known)) as span:
            told = span.get_span_context()
            yield f"00-{told.trace_id:032x}-{told.span_id:016x}-{int(told.trace_flags):02x}"

    def close(self) -> None:
        """What is not sent yet is sent."""
        tracing.install(None)
        self._provider.shutdown()


def _context(place: str) -> Any:
    if not place:
        return None
    _, trace_id, span_id, flags = place.split("-")
    known = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(known))


def _exporter(name: str) -> SpanExporter:
    for found in entry_points(group=_GROUP, name=name):
        return found.load()()
    raise InvalidArgument(
        f"there is no exporter of traces {name!r}",
        next_step="install one, such as opentelemetry-exporter-otlp, or set OTEL_TRACES_EXPORTER=console",
    )
