"""The fleet in a browser: pages made on the server from one watch of the tracker."""
