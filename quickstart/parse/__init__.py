"""Read bytes and documents from untrusted sources within limits, and show them safely."""
