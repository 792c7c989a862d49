"""Elastic and adaptive training with PyTorch."""
