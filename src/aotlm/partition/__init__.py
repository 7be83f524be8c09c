"""Graph → functions and calls of them: embed, one function for each kind of layer, head."""
