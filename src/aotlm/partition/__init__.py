"""Graph → functions and calls: embed → one function for each kind of layer, n calls → head."""
