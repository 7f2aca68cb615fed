"""A second tracker that follows the journal of the first and can take over."""
