package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// processStop is how long a process may take to end after SIGTERM.
const processStop = time.Minute

// Process is a program that runs beside this one, with its output in a file.
type Process struct {
	LogFile string

	name string
	argv []string
	env  []string
	mark string // the folder whose sweep ends the process and its children
	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has been waited for
	err  error         // how it ended; valid once done is closed
}

// Start runs a program; it ends with the box at the latest. env comes on top of the environment.
func (b *Box) Start(name string, env []string, argv ...string) (*Process, error) {
	p := &Process{LogFile: filepath.Join(b.dir, name+".log"), name: name, argv: argv, env: env, mark: b.dir}
	if err := p.Start(); err != nil {
		return nil, err
	}
	b.Add(name, p.Stop)
	return p, nil
}

// Output runs a program in the box's folder to its end and returns what it prints; its error has what it said about it. argv
// begins with the program's path, env comes on top of the environment.
func (b *Box) Output(ctx context.Context, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), env...)
	b.Mark(cmd)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", filepath.Base(argv[0]), strings.Join(argv[1:], " "), err, errs.String())
	}
	return string(text), err
}

// Start runs the program again after it ended. Running is no error.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		select {
		case <-p.done:
		default:
			return nil
		}
	}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(append(os.Environ(), p.env...), boxVariable+"="+p.mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us, not for it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() { // ends with the process, which Stop and Kill wait for
		p.err = cmd.Wait()
		close(done)
	}()
	return nil
}

// PID is the process id, 0 before it began and once it ended.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	select {
	case <-p.done:
		return 0
	default:
		return p.cmd.Process.Pid
	}
}

// Done is closed when the process that runs now has ended.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Kill ends it with SIGKILL and waits until it is gone.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// signal sends a signal and returns a channel that is closed when the process has ended.
func (p *Process) signal(s syscall.Signal) <-chan struct{} {
	p.mu.Lock()
	done := p.done
	_ = p.cmd.Process.Signal(s) // an error says that it has ended
	p.mu.Unlock()
	if s == syscall.SIGKILL {
		<-done
	}
	return done
}

// Stop ends it with SIGTERM, or with SIGKILL after a while, which is an error. A process that has ended is no error.
func (p *Process) Stop() error {
	select {
	case <-p.signal(syscall.SIGTERM):
		return nil
	case <-time.After(processStop):
		p.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.name, processStop)
	}
}

// Err is how the process ended: nil for exit 0, or while it runs.
func (p *Process) Err() error {
	select {
	case <-p.Done():
		if p.err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, p.err, p.Log(20))
		}
	default:
	}
	return nil
}

// Log returns the last lines of its output.
func (p *Process) Log(lines int) string {
	text, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return tail(text, lines)
}

// Running returns an error when the process has ended, which is useful inside [Await].
func (p *Process) Running() error {
	if p.PID() == 0 {
		return errors.Join(fmt.Errorf("%s has ended", p.name), p.Err())
	}
	return nil
}
