"""Figures: plain numbers in, one figure out. None of them reads records or knows a campaign."""

from drainsinkhorn_bench.report.figures.frame import PAPER as PAPER
from drainsinkhorn_bench.report.figures.frame import Figure as Figure
from drainsinkhorn_bench.report.figures.frame import Series as Series
from drainsinkhorn_bench.report.figures.frame import palette as palette
