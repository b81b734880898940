"""Failures that people met with data parallel training, each one as a case with a right answer."""
