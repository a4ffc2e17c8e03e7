"""`kvledger load`: open-loop load against any OpenAI-compatible endpoint. Never talks to an engine in any other way."""
