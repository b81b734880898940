"""PyTorch's own DDP tests, run against `OverlappedDDP`.

The torch wheel ships the tests of `DistributedDataParallel`. This package runs 54 of them twice,
with torch's class and with ours, on the CPU:

    python -m tests.parity            # the table, and out/parity.json
    python -m tests.parity --help

`catalogue.py` names the tests, `cpu_shim.py` lets those written for GPUs run on the CPU,
`driver.py` puts the chosen class in torch's place, `run_tests.py` runs a list of tests in
short-lived ranks and `__main__.py` compares. `test_parity.py` is what pytest sees.
"""
