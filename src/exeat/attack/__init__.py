"""The escape corpus: what a jailed program tries in order to get out, and a scorecard of what got out.

Order of reading: `model` (what a probe is), `targets` (what waits outside), `probes` (what is tried inside), `probe`
(the process that tries), `harness` (control, jail, evidence), `scorecard` (rows for people and programs).

Two rules hold everywhere. A probe counts only if the same probe works without a jail. And what counts as an escape is
decided outside, by what arrived, never by what the probe says. Nothing here sends beyond this machine.
"""
