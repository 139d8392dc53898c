package servicefile

import "github.com/fairlead-dev/fairlead/internal/strictfile"

// A Problem is a rule that a service file breaks. As an error it is wire.Malformed.
type Problem = strictfile.Problem
