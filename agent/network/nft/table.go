package nft

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

// errTableGone makes apply replace the table.
var errTableGone = errors.New("the table is gone")

// Table is our nftables table. Every change is one transaction.
type Table struct {
	Family  ipam.Family
	Name    string
	NS      *os.File // nil: the namespace of the process
	Applied Contents // contents of the kernel's table, as last written or read; nil: not known
	Tracked Contents // contents that tracked connections use; nil: not known
	Absent  bool     // there was none at the last check

	changes *nftables.Conn // of change; nil: not open
}

func (t *Table) Conn(o ...nftables.ConnOption) (*nftables.Conn, error) {
	if t.NS != nil {
		o = append(o, nftables.WithNetNSFd(int(t.NS.Fd())))
	}
	c, err := nftables.New(o...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// Close closes the connection that changes are sent on. The next change opens another one.
func (t *Table) Close() {
	if t.changes != nil {
		_ = t.changes.CloseLasting()
		t.changes = nil
	}
}

func (t *Table) object() *nftables.Table {
	return &nftables.Table{Name: t.Name, Family: tableFamily(t.Family)}
}

// Apply makes the table contain want. It sends only the difference to what it last applied; when the kernel refuses that, because
// another program changed the table, it replaces the whole table, also in one transaction. When nothing differs it checks that
// the table still exists: a firewall that reloads may have removed it. Everything else is found by drift.
func (t *Table) Apply(want Contents) error {
	if want == nil {
		if t.Absent {
			return nil
		}
		there, err := t.exists()
		if err == nil && there {
			err = t.remove()
		}
		t.Applied, t.Absent = nil, err == nil
		return err
	}
	if t.Applied != nil && t.change(want) == nil {
		t.Applied = want
		return nil
	}
	t.Applied = nil
	if err := t.replace(want); err != nil {
		return err
	}
	t.Applied = want
	return nil
}

// change sends what differs between what was applied and want. Its connection stays open, because closing one takes several
// milliseconds after an element was removed: the kernel first frees that. After an error it is closed: answers may be left in it.
func (t *Table) change(want Contents) (err error) {
	if t.changes == nil {
		if t.changes, err = t.Conn(nftables.AsLasting()); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	c, same := t.changes, true
	for _, s := range sets(t.object()) {
		gone, added := t.Applied.without(want, s.Name), want.without(t.Applied, s.Name)
		same = same && len(gone)+len(added) == 0
		for chunk := range slices.Chunk(gone, maxElements) {
			if err := c.SetDeleteElements(s, chunk); err != nil {
				return fmt.Errorf("change table %s: %w", t.Name, err)
			}
		}
		for chunk := range slices.Chunk(added, maxElements) {
			if err := c.SetAddElements(s, chunk); err != nil {
				return fmt.Errorf("change table %s: %w", t.Name, err)
			}
		}
	}
	if same {
		if there, err := t.exists(); err != nil || !there {
			return errors.Join(err, errTableGone)
		}
		return nil
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("change table %s: %w", t.Name, err)
	}
	return nil
}

// replace sends the whole table. A packet is processed by the old one or the new one.
func (t *Table) replace(want Contents) error {
	t.Absent = false
	c, err := t.Conn()
	if err != nil {
		return err
	}
	f := t.object()
	c.AddTable(f) // so that there is one to delete
	c.DelTable(f)
	c.AddTable(f)
	for _, s := range sets(f) {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("make table %s: set %s: %w", t.Name, s.Name, err)
		}
		for chunk := range slices.Chunk(want.without(nil, s.Name), maxElements) {
			if err := c.SetAddElements(s, chunk); err != nil {
				return fmt.Errorf("make table %s: set %s: %w", t.Name, s.Name, err)
			}
		}
	}
	accept := nftables.ChainPolicyAccept
	for _, ch := range chains(t.Family) {
		chain := c.AddChain(&nftables.Chain{Table: f, Name: ch.name, Type: ch.kind, Hooknum: ch.hook, Priority: ch.priority, Policy: &accept})
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: f, Chain: chain, Exprs: r.exprs, UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment)})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make table %s: %w", t.Name, err)
	}
	return nil
}

// remove deletes the table. A missing one is not an error.
func (t *Table) remove() error {
	c, err := t.Conn()
	if err != nil {
		return err
	}
	f := t.object()
	c.AddTable(f)
	c.DelTable(f)
	t.Applied = nil // also if it did not exist before
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove table %s: %w", t.Name, err)
	}
	return nil
}

// exists reports whether the table exists.
func (t *Table) exists() (bool, error) {
	c, err := t.Conn()
	if err != nil {
		return false, err
	}
	tables, err := c.ListTablesOfFamily(tableFamily(t.Family))
	if err != nil {
		return false, fmt.Errorf("list tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(x *nftables.Table) bool { return x.Name == t.Name }), nil
}

// Drift compares the kernel's table with want and returns what differs. Afterwards applied is what the kernel has.
func (t *Table) Drift(want Contents) ([]string, error) {
	t.Applied = nil
	there, err := t.exists()
	if err != nil {
		return nil, err
	}
	t.Absent = !there
	if want == nil {
		if there {
			return []string{"nftables table " + t.Name + " is there for nothing"}, nil
		}
		return nil, nil
	}
	if !there {
		return []string{"nftables table " + t.Name + " is gone"}, nil
	}
	live, out, err := t.read()
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		t.Applied = live
	}
	for _, s := range sets(t.object()) {
		for _, e := range want.without(live, s.Name) {
			out = append(out, fmt.Sprintf("table %s lacks %s", t.Name, describe(t.Family, s.Name, string(e.Key), string(e.Val))))
		}
		for _, k := range slices.Sorted(maps.Keys(live[s.Name])) {
			if _, ok := want[s.Name][k]; !ok {
				out = append(out, fmt.Sprintf("table %s has a foreign %s", t.Name, describe(t.Family, s.Name, k, live[s.Name][k])))
			}
		}
	}
	return out, nil
}

// read returns the elements of the kernel's table, and what of its rules and sets is not ours: then the table must be replaced.
func (t *Table) read() (live Contents, foreign []string, err error) {
	c, err := t.Conn(nftables.AsLasting()) // else each request opens a socket
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	f := t.object()
	for _, ch := range chains(t.Family) {
		rules, err := c.GetRules(f, &nftables.Chain{Name: ch.name, Table: f})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, nil, fmt.Errorf("list chain %s of table %s: %w", ch.name, t.Name, err)
		}
		same := len(rules) == len(ch.rules)
		for i := 0; same && i < len(rules); i++ {
			says, _ := userdata.GetString(rules[i].UserData, userdata.TypeComment)
			same = says == ch.rules[i].comment
		}
		if !same {
			foreign = append(foreign, fmt.Sprintf("chain %s of table %s has other rules", ch.name, t.Name))
		}
	}
	live = Contents{}
	for _, s := range sets(f) {
		list, err := c.GetSetElements(s)
		if err != nil {
			foreign = append(foreign, fmt.Sprintf("set %s of table %s cannot be read: %v", s.Name, t.Name, err))
			continue
		}
		for _, e := range list {
			live.put(s.Name, e.Key, e.Val)
		}
	}
	return live, foreign, nil
}

func tableFamily(f ipam.Family) nftables.TableFamily {
	if f == ipam.V6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}
