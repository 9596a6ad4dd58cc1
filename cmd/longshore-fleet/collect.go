package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/current"
)

// collectAtOnce is how many reports are read at a time.
const collectAtOnce = 8

// maxSeen bounds the file with the newest reports: 100,000 devices need 20 MB.
const maxSeen = 32 << 20

var collectCommand = cmdline.Command{
	Name: "collect", Args: "HOST/PATH|oci-layout:DIR ...",
	Usage: "store the reports that devices pushed to a registry in the database",
	About: "Reads the report of each device whose public key is in --keys, as DEVICE-TAG.pub, from the given repositories, or from\n" +
		"media that longshore export --reports wrote, and verifies it with that key. What is newer than the stored reports of the\n" +
		"device is stored like a posted report; older reports change nothing. A registry that shows a report again that is older than\n" +
		"one of an earlier run is reported; the file DATABASE.seen has the newest report of each device. With --every the command\n" +
		"repeats this until it is stopped. A server may use the database at the same time.\n\n" +
		"   longshore-fleet collect --keys plant/keys harbor.acme.example/plant/state\n" +
		"   longshore-fleet collect --keys plant/keys --every 5m harbor.acme.example/plant/reports\n" +
		"   longshore-fleet collect --keys plant/keys oci-layout:/media/stick/reports\n\n" +
		"Exit codes: 0 done; 2 usage; 3 authentication; 4 no key in --keys; 5 a report is not verified; 6 an old report is shown\n" +
		"again; 75 temporary, try again; 70 anything else.",
	Flags: append([]cmdline.Flag{
		newDatabaseFlag, outputFlag,
		{Name: "keys", Usage: "`DIR` with the devices' public keys, DEVICE-TAG.pub", Env: env("keys")},
		{Name: "every", Value: time.Duration(0), Usage: "repeat after this `TIME`", Default: "once", Env: env("every")},
	}, registryFlags("plain-http")...),
	Run: withNewStore(collect),
}

func collect(c *cmdline.Context, db *store.SQLite) error {
	if c.String("keys") == "" || len(c.Args) == 0 {
		return outcome.Usagef("collect", "collect: give --keys and at least one repository")
	}
	log := slog.New(slog.NewTextHandler(c.Err, nil))
	client, err := registryOf(c, "plain-http", log)
	if err != nil {
		return err
	}
	defer client.Close()
	var from []*registry.Repository
	for _, name := range c.Args {
		repo, err := client.OpenName(c.Context, strings.TrimPrefix(name, "oci://"))
		if err != nil {
			return err
		}
		from = append(from, repo.Upstream()) // a mirror may show an old one
	}
	folder, file := cache.Folder(filepath.Dir(c.String("database"))), filepath.Base(c.String("database"))+".seen"
	before, err := folder.Read(file, maxSeen)
	if err == nil {
		_, err = current.ParseMemory(filepath.Join(string(folder), file), before)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the newest reports of earlier runs cannot be read: an old one cannot be detected in this run", "error", err)
	}
	x := &collector{keys: c.String("keys"), from: from, db: db, seen: current.NewWatch(before), log: log}
	for {
		r, err := x.round(c.Context)
		if data, failed := x.seen.Encode(); failed != nil || bytes.Equal(data, before) {
			// nothing to store
		} else if before = data; folder.Keep(file, data).IsZero() {
			before = nil
			log.Warn("the newest reports are not stored: an old one cannot be detected in the next run", "file", filepath.Join(string(folder), file))
		}
		every := c.Duration("every")
		if every <= 0 {
			return showCollected(c, r, err)
		}
		if err != nil {
			log.Error("collect", "error", err)
		} else {
			log.Info("collected", "devices", r.Devices, "changed", r.Changed, "missing", r.Missing, "skipped", r.Skipped, "failed", len(r.Failed))
		}
		if delay.For(c.Context, every) != nil {
			return nil
		}
	}
}

// registryFlags say how a registry is reached. plainHTTP is the name of one of them.
func registryFlags(plainHTTP string) []cmdline.Flag {
	return []cmdline.Flag{
		{Name: "registry-config", Usage: "credentials `FILE` in Docker's or podman's format; default: their files", Env: env("registry-config")},
		{Name: "ca-file", Usage: "`FILE` with CA certificates to trust in addition to the system's", Env: env("ca-file")},
		{Name: "certs-dir", Usage: "`DIR` with containerd's HOST/hosts.toml", Env: env("certs-dir")},
		{Name: plainHTTP, Value: false, Usage: "use HTTP without TLS; the default for registries on this machine", Env: env(plainHTTP)},
	}
}

func registryOf(c *cmdline.Context, plainHTTP string, log *slog.Logger) (*registry.Client, error) {
	return registry.New(registry.Options{
		PlainHTTP: c.Bool(plainHTTP), CAFile: c.String("ca-file"), AuthFile: c.String("registry-config"), CertsDir: c.String("certs-dir"),
		UserAgent: "longshore-fleet/" + build.Version(), Logger: log, Getenv: os.Getenv,
	})
}

// collected is what one round came to. The JSON keys are stable.
type collected struct {
	Devices int      `json:"devices"` // that there are keys of
	Changed int      `json:"changed"` // with a report that is new here
	Missing int      `json:"missing"` // without a report
	Skipped uint64   `json:"skipped"` // reports that newer ones replaced since the run before, by their numbers
	Notes   []string `json:"notes"`   // that transitions of status are missing, or a report of another database is not stored
	Failed  []string `json:"failed"`  // why reports were not taken

	err error // of the failed ones
}

func showCollected(c *cmdline.Context, r collected, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(c.Show(r, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d with a new report, %d without a report, %d failed\n", printable.Counted(r.Devices, "device"), r.Changed, r.Missing, len(r.Failed))
		if r.Skipped > 0 {
			fmt.Fprintf(w, "%s replaced by newer ones before they were read\n", printable.Counted(int(min(r.Skipped, math.MaxInt32)), "report"))
		}
		for _, note := range r.Notes {
			fmt.Fprintln(w, note)
		}
	}), r.err)
}

// reportKeys is the directory with the public keys of devices.
type reportKeys string

// of reads the key of a device.
func (dir reportKeys) of(tag string) (signing.Key, error) {
	file := filepath.Join(string(dir), tag+".pub")
	data, err := bounded.File(os.Open, file, signing.MaxKeyBytes)
	if err != nil {
		return signing.Key{}, err
	}
	key, err := signing.ParsePublicKey(tag, data)
	if err != nil {
		return key, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// verify reads a report that its device has signed.
func (dir reportKeys) verify(ctx context.Context, bundle []byte) (*artifacts.CurrentState, error) {
	says, err := artifacts.PeekCurrentState(bundle)
	if err != nil {
		return nil, err
	}
	key, err := dir.of(says.Device.Tag())
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no key of device %s here: %w", says.Device, fault.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	statement, _, err := signing.ReadStatement(ctx, bundle, []signing.Key{key})
	if err != nil {
		return nil, err
	}
	return artifacts.ParseCurrentState("report", statement)
}

type collector struct {
	keys string
	from []*registry.Repository
	db   *store.SQLite
	seen *current.Watch
	log  *slog.Logger
}

// round takes the newest report of each device once.
func (x *collector) round(ctx context.Context) (collected, error) {
	files, err := filepath.Glob(filepath.Join(x.keys, "*.pub"))
	if err != nil {
		return collected{}, err
	}
	if len(files) == 0 {
		return collected{}, fault.WithHint(fmt.Errorf("%s: there is no file DEVICE-TAG.pub: %w", x.keys, fault.ErrNotFound), "run longshore-agent key on the device, and write its output to this file")
	}
	out := collected{Devices: len(files), Notes: []string{}, Failed: []string{}}
	missed := x.seen.AllMissed()
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(collectAtOnce)
	for _, file := range files {
		g.Go(func() error {
			changed, note, err := x.device(ctx, file)
			mu.Lock()
			defer mu.Unlock()
			if note != "" {
				note = strings.TrimSuffix(filepath.Base(file), ".pub") + ": " + note
				x.log.Warn("report", "note", note)
				out.Notes = append(out.Notes, note)
			}
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, fault.ErrNotFound):
				out.Missing++
				return nil
			case err != nil:
				x.log.Warn("report rejected", "device", strings.TrimSuffix(filepath.Base(file), ".pub"), "error", err)
				out.Failed = append(out.Failed, err.Error())
				out.err = worse(out.err, err)
			}
			if changed {
				out.Changed++
			}
			return nil
		})
	}
	err = g.Wait()
	out.Skipped = x.seen.AllMissed() - missed
	slices.Sort(out.Failed)
	slices.Sort(out.Notes)
	return out, err
}

// worse keeps the error that tells of a bad report before one that passes.
func worse(a, b error) error {
	if a == nil || errors.Is(a, fault.ErrTemporary) {
		return b
	}
	return a
}

// device takes the report of one device; false: it is not new. fault.ErrNotFound: there is none.
func (x *collector) device(ctx context.Context, file string) (changed bool, note string, err error) {
	tag := strings.TrimSuffix(filepath.Base(file), ".pub")
	key, err := reportKeys(x.keys).of(tag)
	if err != nil {
		return false, "", err
	}
	var newest, there *current.Report // of all, and of registries: media may be older than others
	var failed error
	for _, repo := range x.from {
		r, err := current.Read(ctx, repo, tag, []signing.Key{key})
		switch {
		case err == nil:
			if newest == nil || r.Newer(newest.CurrentState) {
				newest = r
			}
			if repo.Reference().Scheme != registry.SchemeLayout && (there == nil || r.Newer(there.CurrentState)) {
				there = r
			}
		case !errors.Is(err, fault.ErrNotFound):
			failed = worse(failed, err) // another repository may have a good one
		}
	}
	if newest == nil {
		return false, "", cmp.Or(failed, fmt.Errorf("report of %s: %w", tag, fault.ErrNotFound))
	}
	if there != nil {
		if err := x.take(tag, there); err != nil {
			if failed = errors.Join(failed, err); there == newest {
				return false, "", failed
			}
		}
	}
	if there != newest {
		if err := x.take(tag, newest); err != nil && !errors.Is(err, fault.ErrRollback) {
			return false, "", errors.Join(failed, err)
		}
	}
	changed, note, err = status.Collect(ctx, x.db, newest.CurrentState, time.Now())
	if errors.Is(err, fault.ErrNotFound) { // its gateway may be the next
		err = fmt.Errorf("%w: %w", fault.ErrTemporary, err)
	}
	return changed, note, errors.Join(failed, err)
}

// take compares a report with those of earlier runs.
func (x *collector) take(tag string, r *current.Report) error {
	note, err := x.seen.Take(r, time.Now())
	if note != "" {
		x.log.Warn("new database", "device", tag, "note", note)
	}
	return err
}
