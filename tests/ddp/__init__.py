"""Tests of the ladder of DDP classes, on real processes."""
