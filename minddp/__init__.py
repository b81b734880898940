"""Distributed data parallel training, built step by step on real processes."""
