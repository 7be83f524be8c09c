"""`aotlm-run bench`: how fast a bundle runs, and how fast this machine would let it."""
