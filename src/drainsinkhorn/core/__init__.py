"""The control plane: standard library only, no arrays. Read it top down from `executor`."""
