"""OTT-JAX problems and solvers in, OTT-JAX outputs out, drained."""

from drainsinkhorn.apps.ott import solve as solve
