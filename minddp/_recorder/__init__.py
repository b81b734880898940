"""The parts of the recorder: one idea a file. `minddp.recorder` puts them together."""
