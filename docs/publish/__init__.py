"""Turns records into pages. Plain Python; site/hooks.py, which MkDocs calls, is the only file that knows MkDocs.

Each of these imports from those above it only (tests/pages/test_arrows.py):

errors, kept, units, place, palette, markup  one line that stops a build; what a build keeps; texts; HTML
markdown                                    pages as they are written: their fences, and the sections that they embed
records                                     what was measured and printed: schema, store, staleness, admission
evidence                                    a number on a page, and what opens when a reader asks where it comes from
compiled                                    what kernels were compiled to, with no GPU, and its viewer
macros                                      what a page can call
generated                                   pages that nobody writes: machines, history, verification, exports
site                                        MkDocs' side: the hook, notebooks
"""
