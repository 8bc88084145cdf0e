"""Storage of objects: a URL becomes a `Storage`. Nothing else in maxbrod accesses a cloud.

`stores.open_storage` is the entry point, `interface` the contract; `stores` also detects stores that break it.
"""
