"""Property tests run the same examples every time: a failure is a defect, never luck."""

from hypothesis import settings

settings.register_profile("same-examples", deadline=None, derandomize=True, database=None)
settings.load_profile("same-examples")
