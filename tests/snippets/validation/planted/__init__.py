"""Modules as people write them, each with one known fault, and the same module without it.

A case is a pair of factories, `NAME` and `NAME_clean`. The line of the fault ends with `# fault: KIND`.
"""
