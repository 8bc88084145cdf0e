"""Where objects are kept: a URL becomes a `Storage`, and nothing else in maxbrod knows a cloud.

`opening.open_storage` is the way in, `interface` is the contract, `probe` finds stores that do not keep it.
"""
