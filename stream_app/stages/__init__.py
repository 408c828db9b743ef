"""The two stages of the pipeline and the transactional runner that they share."""
