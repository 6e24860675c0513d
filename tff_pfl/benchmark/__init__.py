"""How fast rounds are: named workloads, measured beside a reference."""
