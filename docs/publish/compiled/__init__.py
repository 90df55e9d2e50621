"""What our Triton kernels, and torch.compile's, become at the points that the site publishes, with no GPU.

tests/benchmarks/launches.py ──> compilation.py ──┐      what launchers get at a case's points; what a kernel became
docs/measurements/captures   ──> inductor.py    ──┴──> build.py      all of it, in parallel, and kept
                                                          │
      ┌───────────────────────────────────────────────────┘
      └──> facts.py    what is known of a kernel, and of the binary that was timed
             ├──> page.py ──> explorer.py      the page of facts, the viewer's data: all files of the viewer
             └──> panel.py      what stands on a kernel's page, and in the sentences of pages

subjects.py names what the viewer is about. The viewer itself is docs/theme/scripts/explorer.js.
"""
