"""What notebooks show: pictures and tables of runs, real and simulated."""

from minddp.lab.call_table import call_log
from minddp.lab.timeline_plot import timeline

__all__ = ["call_log", "timeline"]
