"""The verdict: a window of observations becomes signals, and these a ruling. Pure but for what `judge` remembers."""
