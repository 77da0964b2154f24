"""What the folders of trainings tell: reports, what to resume, and what went wrong."""
