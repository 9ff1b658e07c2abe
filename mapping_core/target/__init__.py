"""What is known of the user's model: its layout, its buffers, and how it is executed.

Nothing in here writes to the user's module.
"""
