"""Triton kernels by subject. Docstrings name the functions of `drainsinkhorn.numerics` that kernels implement."""
