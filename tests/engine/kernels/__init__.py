"""Tests of the Triton kernels, in its interpreter where there is no accelerator."""
