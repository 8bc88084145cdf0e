"""Notifications about new and removed objects: S3 events, in every form that they arrive in, and the queue for them."""
