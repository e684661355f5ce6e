"""What all packages share and none owns. Imports none of them."""
