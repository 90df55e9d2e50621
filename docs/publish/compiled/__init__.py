"""What our Triton kernels, and torch.compile's, become at the points that the site publishes, with no GPU.

tests/benchmarks/launches.py ──> compilation.py ──> build.py ──────────> explorer.py ──> page, listings, index.json
what launchers get at            what one           all, in parallel,    the files of the viewer, which is
a case's points                  kernel became      and kept             docs/theme/scripts/explorer.js
docs/measurements/captures ──> inductor.py ──┘
"""
