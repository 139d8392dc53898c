package quota

// Accounts returns of how many users there is something to remember, for tests.
func (l *Ledger) Accounts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accounts)
}
