"""What the report says in words: one place, so that it can be read and corrected as a text."""

from __future__ import annotations

TITLE = "Batched entropic transport, measured"
PURPOSE = (
    "drainsinkhorn solves many entropic transport problems in one kernel and removes each problem from the kernel as "
    "soon as both its marginals are within tol. This page reports how fast that is, how much of the time the removal "
    "saves, and whether the answers are right."
)
CLAIMS = "Claims, and whether these measurements support them"
CARDS = (
    "Unit: a set of problems that all arms (solvers, or modes of this library) solve in turns. Compact removes "
    "finished problems from the kernel; mask and static keep them until the last one has finished; mask / compact is "
    "the ratio of their times. Padding: the work of static over the work that the problems need, less one. Screen: a "
    "cheap check before the full one (verify); our checks get it from the update for nothing, the paper's need a pass "
    "over the rows every few cycles. Layout: an order of the same problems, which decides who shares a kernel. Audit: "
    "both residuals, computed in float64 by code that shares nothing with the solver. Attack: a deliberate corruption "
    "of a running solve."
)

INTRODUCTIONS = {
    "metropt3": (
        "Windows of compressor readings against a healthy window, as predictive maintenance compares them. How "
        "much does the whole path gain over the public serial solver, and how much of that is compaction?"
    ),
    "packer19": (
        "Cells of successive time points, at five tolerances under one two-sided controller. What does each way "
        "to run cost, how far is its output from a tight reference, and what does a threshold on the change of "
        "potentials really reach?"
    ),
    "imagenet": (
        "Couplings for flow matching on image features: the solver alone and the full training interval, and the "
        "ratio of static to compact as windows grow wider."
    ),
    "lidar": (
        "Pairs of consecutive LiDAR scans: three coordinates, many points. Each pair could also start from the "
        "potentials of the pair before it."
    ),
    "transfer": (
        "OTT-JAX and PyKeOps by themselves, and run by our executor: does it pay to remove finished problems where the "
        "kernels are not ours?"
    ),
    "grouping": (
        "One fixed set of problems, grouped into windows in five ways. The needed work is the same in all of "
        "them; only the padding differs."
    ),
    "attribution": (
        "From the plainest packed solver to the whole library, one variable at a time. The first four rows are "
        "the paper's."
    ),
    "precision": (
        "Cases made to lie near the tolerance, and attacks on a running solve. Whose decisions agree with "
        "float64, and does anything wrong get out?"
    ),
    "scaleout": ("Whole windows on independent workers; nothing is exchanged while they run."),
}

ATTACKS = (
    "Stopped: the library let no wrong answer out. Let out: it reported a wrong answer as CONVERGED, which the "
    "external float64 audit of every answer saw. The recheck of released results is a sample, so a single wrong pass "
    "of a lane that is not drawn gets out unless all results are rechecked."
)

METHOD = {
    "Gate": (
        "Before an arm is timed in a unit its answers are audited in float64 with direct differences by code that "
        "shares nothing with the solver. An arm that fails is void there: shown as void, not timed, in no ratio."
    ),
    "Turns": ("Arms of a unit run in turns, in an order balanced for place and predecessor; warm-ups are not counted."),
    "Endpoints": (
        "E1 ends with potentials after the two-sided check, E2 with the consumer's output, E3 with training. "
        "Where E1 could only be reconstructed, the consumer's time is subtracted inside the same run before any "
        "ratio."
    ),
    "Ratio": (
        "Seconds of one arm over seconds of the other in the same repeat of the same unit. A unit's ratio is the "
        "geometric mean of its repeats, a host's of its units, and every host counts the same."
    ),
    "Interval": (
        "Nominal 95 %, by bootstrap with a fixed seed: units drawn anew within hosts, expanded for few units. In "
        "simulations it covers 94 to 96 % from eight units on, 91 % with five and 73 % with three. Where there is one "
        "unit repeats are drawn, and the interval speaks of timing alone."
    ),
    "Slots": (
        "One lane executed for one cycle. Static windows spend width times the largest depth, compact the sum of "
        "the depths; padding is the first over the second, less one."
    ),
}

WATERFALL = (
    "A bar goes from the time before a change to the time after it, in units of the first arm's time; the thin "
    "line is the interval. Each ratio is paired by itself; bars chain them."
)
RATIOS = (
    "Time to potentials of the first arm over that of the second, unless another endpoint is named; paired repeat "
    "by repeat; above 1 the second is faster. Line: 95 % interval over units, or over repeats where there is one "
    "unit. Hollow: the paper's own number, on its own machine and data."
)
SWEEP = "Above 1 the second arm is faster. Filled: here, with 95 % intervals. Hollow, dashed: the paper."
PARETO = (
    "Median seconds of a unit against the total variation between its output and that of a tight reference; down "
    "and to the left is better. Points of an arm are its tolerances."
)
DEVIATIONS = (
    "Residuals by a float64 auditor over all arms that passed; deviation is total variation. Paper: tab:packer-pareto."
)
GROUPING = "On the solid line all padding becomes time. Problems and needed work are the same in every layout."
LAYOUTS = "H_D: standard deviation over mean of depths in a window. Paper: tab:m3-grouping."
DECISIONS = (
    "A cell is a case made to lie near the tolerance, from a residual above it on the left to one below it on the "
    "right; full colour where the decision is not float64's. Guarded "
    "is what the library does: it passes only where residual and band together are within the tolerance."
)
WORKERS = "Every worker has windows of its own, as many as one alone would have."
WIDTHS = (
    "What the kernels executed in the first timed run. Arms that run one lane at a time are left out. Point at a step "
    "for its numbers; the legend switches arms."
)
TIMES = "A dot is one timed run of one unit; nothing is left out."
NATIVE = (
    "Such a threshold is no tolerance of marginals: what it reaches depends on the problem. Paper: tab:packer-"
    "native-stopping."
)
QUALITY = "Lower is better; not inferior where the ratio is at most what is allowed. Paper: tab:imagenet-quality."
CURVE = "Measured on the real backend with the unit's own problems. Slots become time through this curve."
ROOFLINE = (
    "Seconds of one cycle of one lane. The floor is the least time that what is named under a kernel takes; dark, the "
    "floor, light, what is spent beyond it. On a CPU the floor is what NumPy or BLAS need, which a kernel may undercut."
)
RESOURCES = (
    "Slots: one run of every unit, added up. Energy and peak memory: median of a timed run; – where the machine "
    "does not tell."
)
GATES = "Residuals by a float64 auditor with direct differences, before any timing. Void is neither timed nor counted."
GLANCE = (
    "Filled: here, geometric mean of paired ratios with a 95 % bootstrap interval. Hollow: the paper's own "
    "number, from its machine and its data, so the two need not agree; what differs is said in each campaign. "
    "Above 1, the second arm of a contrast is faster."
)
THEORY = (
    "What the identities and the measured width-cost curve say should happen, beside what did. Slots are exact; "
    "time is a prediction from the curve, depths one from the spectrum of a problem."
)
PADDING = (
    "A point is a unit and an arm. Solid: all padding becomes time. Dashed: 0.92 of it, what mask / compact must reach "
    "from a padding of 0.2 on."
)
FORETOLD = (
    "Shaded: within 10 %. Prediction and measurement are lower quartiles: other work on a machine only adds time."
)
MODAL = (
    "Plain Sinkhorn from zero and from beside the solution, small problems. Near the solution the full spectrum "
    "is exact; from zero the first cycles are not linear. λ₂ alone ignores what the start does not touch."
)
PROVENANCE = (
    "A manifest freezes source, inputs, options, clock, versions and machine; records are appended to a raw file "
    "and never edited. This page is a function of those files alone: drain bench report writes it again, byte for "
    "byte."
)
