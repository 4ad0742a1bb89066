"""The page of `exeat ui`: sandboxes, what they decide, and the few buttons that change it.

The way of a request: `server` reads it, `guard` says whether whoever sent it may, `files`, `feed` or `actions` answer.
`feed` is built from `look` (what sandboxes are like) and `rows` (what their logs say).
"""
