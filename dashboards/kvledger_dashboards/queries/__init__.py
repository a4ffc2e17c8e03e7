"""Every PromQL query of the boards, by what it shows: one module per subject. No panel, no layout, no colour.

A query that has nothing to say returns nothing: a ratio without traffic and a quantile without observations are absent,
never 0 and never NaN.
"""
