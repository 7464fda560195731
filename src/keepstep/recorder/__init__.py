"""The flight recorder of PyTorch: safe reading of every format, collection, delivery."""
