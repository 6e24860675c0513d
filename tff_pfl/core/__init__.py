"""The process, its round, and what runs on a client: objectives, training."""
