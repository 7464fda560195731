"""How long a job stands still after a lost or stopped rank: ours, torchrun, torchft.

benchmarks/README.md says what is measured and what to mind when reading the numbers.
"""
