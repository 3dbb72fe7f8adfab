"""Running the queries of a pipeline.

`pipeline_run` starts and stops all queries, `queries` supervises one of them, and `batch_writer` delivers its batches.
`checkpoint_folder` refuses incompatible checkpoints by `plans`; `progress`, `failures` and `status_line` report.
"""
