package main

// Run runs a command line.
var Run = run
