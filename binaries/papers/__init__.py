"""The papers' experiments: each runs, draws a figure and checks claims."""
