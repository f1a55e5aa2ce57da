"""The engine on a Ray cluster: builds are tasks on its processors, measuring processes are actors that own a GPU."""
