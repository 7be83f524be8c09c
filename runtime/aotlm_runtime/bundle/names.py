"""The names of what a bundle holds beside the files that its manifest lists."""

MANIFEST = "manifest.json"
# The signature covers the manifest, so that does not list it.
SIGNATURE = "model.sig"
PAD = ".pad"  # of an archive: it aligns the weights
