"""From the caller's arrays to results: validation, the queue, the session, the journal."""
