"""`inv bench`: a bundle beside the machine's limits and beside other programs on the same weights.

The peers are measured by this folder alone: nothing of the compiler or the runtime imports it.
"""
