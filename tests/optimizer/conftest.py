"""`pytest tests/optimizer/test_fuzz.py --hypothesis-profile=optimizer-full` tries 10,000 bodies."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "optimizer-full",
    max_examples=10_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
