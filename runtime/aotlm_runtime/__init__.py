"""Runs bundles made by aotlm: verifies them, maps the weights, generates text."""
