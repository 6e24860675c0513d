"""What runs the papers' experiments: trials, tables, claims and figures."""
