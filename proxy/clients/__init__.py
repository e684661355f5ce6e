"""The side of clients: their connections, requests and answers. Event loop only."""
