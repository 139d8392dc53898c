package faults

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// quiet checks everything after the faults of a round. What it finds is in the report; the error is the machine's own.
func (m *machine) quiet(r Round) error {
	ctx, cancel := context.WithTimeout(m.ctx, 4*patience)
	defer cancel()
	m.release()
	if m.collect() { // there is no need to look further
		return nil
	}
	if err := m.retry(ctx, m.resetAll); err != nil {
		m.found(finding(noRecovery, "the broker does not answer: %v", err))
		return nil
	}
	if m.everybody(again) == nil || m.collect() {
		return nil
	}
	m.recovered()
	held := m.everybody(hold)
	if held == nil {
		return nil
	}
	if err := m.compareLedgers(); err != nil {
		return err
	}
	var all []holding
	for _, a := range held {
		all = append(all, a.Held...)
	}
	if _, err := m.settled(ctx, all, false); err != nil {
		return err
	}
	m.report.checked("tables while everything is held", 1)
	m.report.checked("sessions of clients in the broker's table", len(all))
	m.everybody(letGo)
	if err := m.compareEmpty(ctx, r); err != nil {
		return err
	}
	m.collect()
	return m.trim()
}

// retry does f until it succeeds, within patience.
func (m *machine) retry(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		m.pause(10 * time.Millisecond)
	}
}

// everybody says a word to all crowds, and returns their answers; nil where one does not answer.
func (m *machine) everybody(phase string) []answer {
	answers := make([]answer, len(m.crowds))
	failures := make([]error, len(m.crowds))
	var asking sync.WaitGroup
	for i, a := range m.crowds {
		asking.Go(func() { answers[i], failures[i] = a.ask(phase) })
	}
	asking.Wait()
	if i := slices.IndexFunc(failures, func(err error) bool { return err != nil }); i >= 0 {
		m.found(finding(noRecovery, "%v", failures[i]))
		m.lookInto(m.crowds[i])
		return nil
	}
	return answers
}

// lookInto has an actor say in its last words what it waits for, once, for who looks into a finding.
func (m *machine) lookInto(a *actor) {
	m.looked.Do(func() {
		m.Log("processes: %v", m.processes())
		a.signal(syscall.SIGQUIT)
		m.pause(time.Second)
	})
}

// recovered has all clients come round until none fails, and finds those that still do after soon: the last fault may have been the stop of a service, which takes its time.
func (m *machine) recovered() {
	for deadline := time.Now().Add(soon); ; {
		all := m.everybody(calm)
		i := slices.IndexFunc(all, func(a answer) bool { return len(a.Failures) > 0 })
		if i < 0 {
			break
		}
		if time.Now().After(deadline) {
			m.lookInto(m.others[0])
			m.found(finding(noRecovery, "crowd %d, pid %d, has failures without faults: %q", i, m.crowds[i].pid(), all[i].Failures))
			break
		}
	}
	m.report.checked("clients that got on without a failure", m.Crowds*(m.Callers+m.Lessees))
}

// compareLedgers checks what was executed.
func (m *machine) compareLedgers() error {
	executed, outcomes, err := m.takeLedgers()
	if err != nil {
		return err
	}
	for _, f := range checkLedgers(executed, outcomes) {
		m.found(f)
	}
	n := 0
	for _, o := range outcomes {
		if o.Act.executes() {
			n++
		}
	}
	m.report.became(outcomes)
	m.report.checked("outcomes beside what was executed", n)
	m.report.checked("executions that came once", len(executed))
	return nil
}

// settled looks until the tables say what there is, and finds what they say otherwise for too long: they learn in their own time.
func (m *machine) settled(ctx context.Context, held []holding, empty bool) (*observation, error) {
	var e eyes
	err := m.retry(ctx, func(ctx context.Context) (err error) {
		e, err = m.look(ctx)
		return err
	})
	if err != nil {
		m.found(finding(noRecovery, "the machine cannot open its sessions: %v", err))
		return nil, nil
	}
	defer e.close()
	deadline := time.Now().Add(patience / 2)
	for {
		o, err := m.observe(ctx, e, held, empty)
		if err != nil {
			m.found(finding(noRecovery, "the tables cannot be read: %v", err))
			return nil, nil
		}
		found := o.check(m.base, m.before)
		if len(found) == 0 {
			return o, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			for _, f := range found {
				m.found(f)
			}
			return o, nil
		}
		m.pause(20 * time.Millisecond)
	}
}

// compareEmpty checks that nothing is left of what all had. The first time it notes what there is before any fault.
func (m *machine) compareEmpty(ctx context.Context, r Round) error {
	o, err := m.settled(ctx, nil, true)
	if o == nil || err != nil {
		return err
	}
	m.report.checked("tables, processes, files and descriptors when all have let go", 1)
	if r.Autopsy {
		if err := m.autopsy(o); err != nil {
			return err
		}
		m.report.checked("goroutines of brokerd and the network service", 1)
	}
	if m.base == nil {
		m.base, m.before = o.Counts, o.Files
		m.Log("before the first fault: %v", m.base)
		return nil
	}
	m.Log("round %d: %v", r.Number, o.Counts)
	for _, f := range o.checkCounts(m.base) {
		m.found(f)
	}
	return nil
}

// trim empties the log of brokerd, if nothing was found: who looks into a finding has that of its round.
func (m *machine) trim() error {
	if len(m.report.Findings) > 0 {
		return nil
	}
	if err := os.Truncate(m.log.Name(), 0); err != nil {
		return fmt.Errorf("empty the log of brokerd: %w", err)
	}
	return nil
}
