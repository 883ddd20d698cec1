"""Derivatives of entropic values, divergences and potentials: `grad.torch` for autograd, `grad.jax` for JAX.

Values and divergences by the envelope theorem: at the optimum the potentials need no derivative, so

    d OT / dx_i = sum_j P_ij dC(x_i, y_j)/dx_i        d OT / da_i = f_i

Whatever else is built from potentials by implicit differentiation of the marginal equations (see `implicit`).
"""
