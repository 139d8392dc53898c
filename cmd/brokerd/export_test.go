package main

// ServePath is how the broker's socket is chosen.
var ServePath = servePath
