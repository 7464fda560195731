"""A look before the leap: what a new PyTorch drops or changes in a job's code and variables."""
