"""Sinkhorn divergences under GeomLoss's name: `SamplesLoss`, a module of torch."""

from drainsinkhorn.apps.geomloss import SamplesLoss as SamplesLoss
