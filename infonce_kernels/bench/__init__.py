"""Measuring: what every rung and its rivals cost on a GPU, and the records of it.

`measure` times one subject on one problem, `sweep` many; `records` reads and writes the results,
which plots and lessons show on machines that have no GPU; `counters` asks the hardware why.
"""
