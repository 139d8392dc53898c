package pool

// NewBounded is New with another bound for the freed addresses.
func NewBounded(c Config, maxFreed int) (*Pool, error) {
	p, err := New(c)
	if err == nil {
		p.maxFreed = maxFreed
	}
	return p, err
}

// SkipTo makes offset of the first prefix the next never-used one, as if all before it had been given and forgotten.
func (p *Pool) SkipTo(offset uint64) { p.parts[0].next = offset }

// Remembered returns how many addresses the pool has memory for.
func (p *Pool) Remembered() int { return len(p.slots) - 1 }
