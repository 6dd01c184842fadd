"""Work on several threads: an ordered map, the pipeline, what forks may not touch."""
