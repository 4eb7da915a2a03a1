"""Words, charts and pages about results; nothing here knows a tensor."""
