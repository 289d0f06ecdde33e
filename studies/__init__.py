"""What makes the book's tables of results, what draws them, and the tables: one folder a topic.

It is not in the wheel. An editable install finds it from any folder.
"""
