"""A look before the leap: what a new PyTorch drops or changes, found in a job's code and variables."""
