"""The main job on a real cluster in a box."""
