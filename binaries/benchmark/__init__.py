"""Speed of rounds: named workloads, measured beside a reference."""
