"""The block-pool explorer: a Streamlit application over the agent's API. Holds no ledger and no prompt text."""
