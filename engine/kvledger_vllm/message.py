"""spike"""
SCHEDULE, UPDATE, OTHER = range(3)
