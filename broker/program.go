package broker

import "sync"

// The programs are those that the broker has started and that live, by the numbers of their processes.
type programs struct {
	mu    sync.Mutex
	byPID map[int]*program
}

// A program has a place among the connections whose first frame has not come, which is nobody else's.
type program struct {
	life *life
	mu   sync.Mutex
	used bool
}

// add enters the program of a life, until drop is called.
func (p *programs) add(l *life) (drop func()) {
	pid, one := l.pid(), &program{life: l}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byPID == nil {
		p.byPID = map[int]*program{}
	}
	p.byPID[pid] = one
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.byPID[pid] == one { // else the number is another's
			delete(p.byPID, pid)
		}
	}
}

// find returns the program that has a number, or nil.
func (p *programs) find(pid int) *program {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byPID[pid]
}

// reserve takes the program's place, and reports false where it is taken.
func (p *program) reserve() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := !p.used
	p.used = true
	return free
}

func (p *program) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = false
}
