"""What all tests share: property tests that give the same cases every time and know no stopwatch."""

from hypothesis import settings

settings.register_profile("crossclr", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("crossclr")
