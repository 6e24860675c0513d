"""The process, its round, and a client's work: objectives and training."""
