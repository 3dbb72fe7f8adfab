"""Checkpoints in object stores with conditional writes: S3 and DynamoDB."""
