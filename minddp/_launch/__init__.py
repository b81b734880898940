"""The parts of `minddp.launcher`: start there."""
