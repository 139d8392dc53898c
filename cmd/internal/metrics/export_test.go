package metrics

// For tests: a listener that accepts so many connections at a time.
var NewBounded = newBounded
