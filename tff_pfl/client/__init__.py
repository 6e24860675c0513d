"""What runs on a client: data as tensors, objectives, the training loop."""
