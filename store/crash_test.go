package store

func runChild(string) {}
