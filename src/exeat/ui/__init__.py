"""The page of `exeat ui`: sandboxes, what they decide, and the few buttons that change it.

The way of a request: `server` reads it, `guard` says whether its sender may ask, `feed` or `actions` do the work, and
`answers` says it. `rows` has what lines of a log mean on the page.
"""
