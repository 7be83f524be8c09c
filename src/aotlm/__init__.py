"""aotlm: an ahead-of-time compiler from Hugging Face causal language models to native bundles."""
