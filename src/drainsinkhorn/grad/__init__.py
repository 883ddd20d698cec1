"""Derivatives of entropic values, divergences and potentials: `grad.torch` for autograd, `grad.jax` for JAX.

Values and divergences are differentiated by the envelope theorem: at the optimum the potentials need no derivative, so

    d OT / dx_i = sum_j P_ij dC(x_i, y_j)/dx_i        d OT / da_i = f_i

Other functions of the potentials are differentiated implicitly, through the marginal equations (see `implicit`).
"""
