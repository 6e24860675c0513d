"""Personalization before scoring, and summaries over clients."""
