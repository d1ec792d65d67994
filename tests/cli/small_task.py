"""The task that these tests train and evaluate on: one-digit multiplication."""

TASK = ["--task", "multiply", "--task-option", "first_digits=1", "--task-option", "second_digits=1"]
