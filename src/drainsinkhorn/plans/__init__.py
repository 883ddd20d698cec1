"""Functions that compute products, maps, samples, costs and plots from finished couplings."""
