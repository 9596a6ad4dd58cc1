// Package claim makes one process the only agent of a device on a containerd, by a lease without content that names it.
package claim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Names of a claim, and limits of its calls.
const (
	claimPrefix = "longshore-agent-"
	labelAgent  = owned.LabelPrefix + "agent" // the device; not labelDevice, because Collect drops objects with it
	labelOwner  = owned.LabelPrefix + "owner" // an owner as JSON
	claimLimit  = 5 * time.Second             // for a claim to be made
	claimWait   = 2 * time.Second             // for a claim to be given up
)

// owner is the agent's process that made a claim.
type owner struct {
	Boot string `json:"boot"`  // id of the machine's start
	PIDs string `json:"pids"`  // namespace of processes that PID is of
	PID  int    `json:"pid"`   // in that namespace
	Run  string `json:"run"`   // see started
	Dir  string `json:"dir"`   // data directory, as the owner names it
	Node string `json:"inode"` // of the data directory: its owner holds its lock
}

// Options of a claim. All are needed.
type Options struct {
	Device    string
	Namespace string // of containerd, for messages
	DataDir   string // of the agent: its owner holds its lock
	Logger    *slog.Logger
}

// Claim is the claim of this process. Its methods may be called from several goroutines, with containerd's namespace in their contexts.
type Claim struct {
	o      Options
	leases leases.Manager
	turn   chan struct{} // holds one token while lease is in use
	lease  string        // "": none yet
}

// New makes a claim that does not hold yet.
func New(m leases.Manager, o Options) *Claim {
	return &Claim{o: o, leases: m, turn: make(chan struct{}, 1)}
}

// Hold makes this process the only agent of its device, until Release or the end of the process. fault.ErrConflict names the process
// that holds the claim; fault.ErrTemporary: containerd does not answer.
//
// It creates a claim, then checks for others: if two agents start at the same time, both may be rejected, but never both
// accepted. Claims of ended processes are removed.
func (r *Claim) Hold(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	err := r.holdOnce(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil && !errors.Is(err, fault.ErrConflict) {
		err = fault.WithHint(failure.As(fault.ErrTemporary, fmt.Errorf("containerd did not answer for %v: %w", claimLimit, err)), "is containerd running?")
	}
	if err != nil {
		return fmt.Errorf("claim device %s: %w", r.o.Device, failure.Classify(err))
	}
	return nil
}

// holdOnce creates the claim unless this process has it.
func (r *Claim) holdOnce(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.lease != "" {
		return nil
	}
	self, err := r.self()
	if err != nil {
		return err
	}
	name := self.lease(r.o.Device)
	text, err := json.Marshal(self)
	if err != nil {
		return err
	}
	_, err = r.leases.Create(ctx, leases.WithID(name), leases.WithLabels(map[string]string{labelAgent: r.o.Device, labelOwner: string(text)}))
	fresh := err == nil
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	err = r.checkOthers(ctx, self, name)
	if err != nil && fresh {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimWait)
		defer cancel()
		err = errors.Join(err, ignoreMissing(r.leases.Delete(ctx, leases.Lease{ID: name})))
	}
	if err != nil {
		return err
	}
	r.lease = name
	return nil
}

// checkOthers checks the claims of others. An unreadable claim counts too: a newer agent may have made it.
func (r *Claim) checkOthers(ctx context.Context, self owner, name string) error {
	held, err := r.leases.List(ctx, "labels."+strconv.Quote(labelAgent)+"=="+strconv.Quote(r.o.Device))
	if err != nil {
		return err
	}
	for _, l := range held {
		if l.ID == name {
			continue
		}
		var o owner
		who := "its claim cannot be read"
		if err := json.Unmarshal([]byte(l.Labels[labelOwner]), &o); err == nil && o.Boot != "" {
			if !o.alive(self, "/proc") {
				if err := ignoreMissing(r.leases.Delete(ctx, l)); err != nil {
					return err
				}
				continue
			}
			who = fmt.Sprintf("process %d with data directory %s", o.PID, o.Dir)
		}
		return fault.WithHint(
			fmt.Errorf("another agent drives its containers: %s: %w", who, fault.ErrConflict),
			fmt.Sprintf("stop that agent, or give this one another device id or containerd namespace; if it runs no more: ctr -n %s leases delete %s", r.o.Namespace, l.ID),
		)
	}
	return nil
}

// Release deletes the claim if containerd answers: the claim of an ended process does not count anyway. It ends soon, but not with ctx.
func (r *Claim) Release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimWait)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return
	}
	if r.lease == "" {
		return
	}
	if err := ignoreMissing(r.leases.Delete(ctx, leases.Lease{ID: r.lease})); err != nil {
		r.o.Logger.Debug("cannot delete the claim of the device", "error", err)
	}
	r.lease = ""
}

// ignoreMissing returns the error of a deletion; a missing object is not an error.
func ignoreMissing(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// self is this process.
func (r *Claim) self() (owner, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return owner{}, err
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return owner{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(r.o.DataDir, &st); err != nil {
		return owner{}, fmt.Errorf("look at data directory %s: %w", r.o.DataDir, err)
	}
	run, _, _ := process.Started(uint32(os.Getpid()), "/proc")
	return owner{
		Boot: strings.TrimSpace(string(boot)), PIDs: pids, PID: os.Getpid(), Run: run, Dir: r.o.DataDir, Node: fmt.Sprintf("%d:%d", st.Dev, st.Ino),
	}, nil
}

// lease is the name of an owner's claim, different for each owner.
func (o owner) lease(device string) string {
	h := sha256.Sum256([]byte(device + "\x00" + o.Boot + "\x00" + o.PIDs + "\x00" + o.Run + "\x00" + o.Node))
	return claimPrefix + hex.EncodeToString(h[:16])
}

// alive reports whether an owner may still run, as far as self can detect. In different PID namespaces self can only detect a reboot
// since then, or that it has the owner's data directory and so its lock.
func (o owner) alive(self owner, proc string) bool {
	switch {
	case o.Boot != self.Boot:
		return false
	case o.PIDs == self.PIDs:
		run, _, _ := process.Started(uint32(o.PID), proc)
		return run != "" && run == o.Run && (run != self.Run || o.Node != self.Node)
	}
	return o.Node != self.Node
}
