"""What each server could run on, sized and priced. Pure."""
