"""First steps: `maxbrod init`, `maxbrod config`, `maxbrod doctor`."""
