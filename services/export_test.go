package services

import "time"

// SetAcceptWait sets how long a session may take to be accepted. It is for a Host that has taken no hand-over yet.
func (h *Host) SetAcceptWait(d time.Duration) { h.accepting = d }
