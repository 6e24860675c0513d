"""Programs; run them as `python -m binaries.NAME --help`."""

import os

# Before TensorFlow is imported: its start-up messages help nobody here.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
