"""An archive of any layout into another of any layout, with a proof."""
