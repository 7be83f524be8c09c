"""Hugging Face model → Graph: source → trace (torch.export) → importer, by the table in aten.py.

Beside it the checkpoint: source → tensors → convert → weight file. What cannot be compiled is one
error: of config_checks before the trace, of attention within it, and of any_size, missing and the
importer behind it.
"""
