package network

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// dropChain is a base chain of another program that drops forwarded packets by its policy, also those that our table accepts.
type dropChain struct {
	chain, table string
	family       nftables.TableFamily
}

// dropChains lists them, without those with a rule that matches our interfaces or addresses, or accepts everything.
func (m *Manager) dropChains() ([]dropChain, error) {
	c, err := m.tables[ipam.V4].Conn()
	if err != nil {
		return nil, err
	}
	list, err := completeList(c.ListChains)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var out []dropChain
	for _, ch := range list {
		inet := ch.Table.Family == nftables.TableFamilyIPv4 || ch.Table.Family == nftables.TableFamilyINet || ch.Table.Family == nftables.TableFamilyIPv6 && m.state.Uses(ipam.V6)
		if !inet || ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward || ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop || ch.Table.Name == m.o.Table {
			continue
		}
		allowed := false
		for _, other := range list { // also where the base chain jumps to
			if other.Table.Name != ch.Table.Name || other.Table.Family != ch.Table.Family {
				continue
			}
			rules, err := c.GetRules(other.Table, other)
			if err != nil {
				continue // it was deleted meanwhile
			}
			allowed = allowed || slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return m.allowsUs(r, other.Name == ch.Name) })
		}
		if !allowed {
			out = append(out, dropChain{chain: ch.Name, table: ch.Table.Name, family: ch.Table.Family})
		}
	}
	return out, nil
}

// allowsUs reports whether a rule may accept our packets: it matches our interfaces or the pool, or it accepts without a condition.
func (m *Manager) allowsUs(r *nftables.Rule, base bool) bool {
	pool := m.o.Pool.Addr().AsSlice()[:max(m.o.Pool.Bits()/8, 1)]
	conditions, accepts := 0, false
	for _, e := range r.Exprs {
		switch x := e.(type) {
		case *expr.Cmp:
			if bytes.HasPrefix(x.Data, []byte(m.host.prefix)) || bytes.HasPrefix(x.Data, pool) {
				return true
			}
			conditions++
		case *expr.Verdict:
			accepts = x.Kind == expr.VerdictAccept
		case *expr.Counter:
		default:
			conditions++
		}
	}
	return base && accepts && conditions == 0
}

// blockers returns an error with a hint for each chain that drops our packets.
func (m *Manager) blockers() ([]error, error) {
	list, err := m.dropChains()
	if err != nil {
		return nil, err
	}
	var out []error
	for _, d := range list {
		hint := fmt.Sprintf(`allow them there: nft insert rule inet %s %s iifname "%s*" accept, and the same with oifname`, d.table, d.chain, m.host.prefix)
		if d.family != nftables.TableFamilyINet {
			hint = fmt.Sprintf("allow them there: iptables -I %s -i %s+ -j ACCEPT, and the same with -o (with Docker: -I DOCKER-USER)", d.chain, m.host.prefix)
		}
		out = append(out, fault.WithHint(fmt.Errorf("chain %s of table %s, another firewall's, drops packets that containers send: %w", d.chain, d.table, fault.ErrConflict), hint))
	}
	return out, nil
}

// noteDropChains notes other firewalls that drop our packets.
func (m *Manager) noteDropChains() error {
	list, err := m.dropChains()
	if err != nil {
		return err
	}
	for _, d := range list {
		m.note(fmt.Sprintf("chain %s of table %s drops forwarded packets by default: allow those from and to interfaces %s*", d.chain, d.table, m.host.prefix))
	}
	return nil
}
