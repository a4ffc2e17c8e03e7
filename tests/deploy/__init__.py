"""The compose file, its images and what is mounted into them, checked without a Docker daemon."""
