"""Decides what a run does, from the cluster's state and the catalog's. Pure: values in, values out."""
