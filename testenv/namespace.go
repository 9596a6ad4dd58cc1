package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Network makes a network namespace with nothing but a loopback. It is gone with the box.
func (b *Box) Network(ctx context.Context) (path string, err error) {
	dir, err := b.Folder("n")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "net")
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return "", err
	}
	for _, argv := range [][]string{
		{"unshare", "--net=" + path, "true"},
		{"nsenter", "--net=" + path, "ip", "link", "set", "lo", "up"},
	} {
		if text, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("make a network namespace: %w: %s", err, text)
		}
	}
	return path, nil
}

// DialIn connects from inside a network namespace, whose path network is.
func DialIn(network string) func(ctx context.Context, proto, address string) (net.Conn, error) {
	return func(ctx context.Context, proto, address string) (net.Conn, error) {
		return In(network, func() (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, proto, address) })
	}
}

// In calls f inside a network namespace, on a thread that ends with the call; "": in this namespace. A socket that f makes
// stays there.
func In[T any](network string, f func() (T, error)) (result T, err error) {
	if network == "" {
		return f()
	}
	done := make(chan struct{})
	go func() { // ends with the call
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var ns *os.File
		if ns, err = os.Open(network); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter %s: %w", network, err)
			return
		}
		result, err = f()
	}()
	<-done
	return result, err
}
