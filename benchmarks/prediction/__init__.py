"""Predictive training against tuned baselines: time, backward passes and forward equivalents to preset losses."""
