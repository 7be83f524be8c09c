"""Graph → functions and their calls: embed → one function for each kind of layer, n calls → head."""
