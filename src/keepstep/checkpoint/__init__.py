"""The checkpoint boundary: which PyTorch can read a distributed checkpoint, and how to go back.

Nothing here imports torch, and nothing that a checkpoint says is executed.
"""
