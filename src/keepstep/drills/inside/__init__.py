"""What runs inside a stack: started by the path of its file, standard library and torch alone."""
