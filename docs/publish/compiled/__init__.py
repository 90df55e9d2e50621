"""What our Triton kernels become at the points that the site publishes, for every target, with no GPU.

tests/benchmarks/kernels/ ──> launches.py ──> build.py ──────────> explorer.py ──> page, listings
(the published points)        what each       compiled, looked     site files and panel
                              launcher gets   at and kept
"""
