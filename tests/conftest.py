"""What every test shares."""

from hypothesis import settings

# Ranks are processes and cores are few: how long one example takes says nothing about the code.
settings.register_profile("minddp", deadline=None, print_blob=True)
settings.load_profile("minddp")
