package runner

import (
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals returns the signals that a program should pass on to its command, for signal.Notify:
// all that ask a process to end, to look or to do something. It leaves out what this program
// was started to ignore, as SIGHUP under nohup, so that the command ignores it too, and SIGTSTP, so
// that a terminal stops this program with its command.
func Signals() []os.Signal {
	all := []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGCONT, unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR,
	}
	return slices.DeleteFunc(all, signal.Ignored)
}

// Forward passes the signals that arrive on signals on to the command, from its start until
// signals is closed or the container is gone. It blocks; run it beside Run, and wait for both. The
// caller owns signals and the signal.Notify that fills it:
//
//	signals := make(chan os.Signal, 16)
//	signal.Notify(signals, runner.Signals()...)
//	defer signal.Stop(signals)
//	var forwarding sync.WaitGroup
//	forwarding.Go(func() { container.Forward(signals) })
//	err := container.Run(ctx, lease)
//	forwarding.Wait()
//
// While this process is in its terminal's foreground group, SIGINT, SIGQUIT, SIGTSTP and
// SIGWINCH are not passed on: the terminal sends them to the whole group, the command
// included. One that somebody sends to this process alone then cannot be told from the terminal's and
// is dropped. SIGCHLD, SIGPIPE and SIGURG are this process's own and never passed on.
func (c *Container) Forward(signals <-chan os.Signal) {
	select {
	case <-c.started:
	case <-c.gone:
		return
	}
	for {
		select {
		case sig, ok := <-signals:
			if !ok {
				return
			}
			if !passesOn(sig) {
				continue
			}
			if err := c.Signal(sig); err != nil {
				c.options.logger().Debug("a signal was not passed on", "err", err)
			}
		case <-c.gone:
			return
		}
	}
}

func passesOn(sig os.Signal) bool {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGPIPE, syscall.SIGURG:
		return false
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		return !inForeground()
	}
	return true
}

// inForeground reports whether this process's group is the foreground group of its
// controlling terminal, see tcgetpgrp(3).
func inForeground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetUint32(tty, unix.TIOCGPGRP)
	return err == nil && int(group) == unix.Getpgrp()
}
