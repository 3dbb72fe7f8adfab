"""Checkpoints in object stores with conditional writes: a folder of files, S3 and DynamoDB."""
