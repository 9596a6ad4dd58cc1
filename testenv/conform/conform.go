// Package conform checks whether a workload fleet manager conforms to Margo 1.0.0-rc.3: desired state, status, capabilities, API and
// identity, by requests over mutual TLS as a client sends them. It knows nothing of the manager but its address, so it checks
// anybody's.
//
// The entry point is [Run]; [Cases] lists the cases, and musts.txt the rules that they check. TestManager runs them against
// longshore-fleet; TestMutants holds that each case fails where its rule is broken.
//
// # Why it parses everything itself
//
// The suite shares no code with the programs of this repository: a parser that is wrong on both sides would agree with itself.
package conform

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Target is a manager under test. BaseURL, Client and Anchors must be set; a case that needs more is skipped without it.
type Target struct {
	BaseURL string          // https://HOST[:PORT]
	Client  tls.Certificate // of an accepted client, with its key. The suite registers and removes its device, and reports about it
	Device  string          // that the client speaks for; "": its client id
	Anchors []*x509.Certificate

	Other       *tls.Certificate // of another accepted client
	OtherDevice string           // "": its client id

	// Authority signs certificates for clients that the manager must reject.
	Authority *Authority
	// Fresh is the id of an accepted client without assigned deployments; its certificate is signed by Authority.
	Fresh string
	// Assign has a device run a number of deployments, other ones than before.
	Assign func(ctx context.Context, device string, deployments int) error
	// Patience is how long an assignment may take to be served; 0: one minute.
	Patience time.Duration
}

// Authority is a trust anchor of the manager's trust domain.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// Case checks rules.
type Case struct {
	ID    string
	Rules []string // ids of musts.txt
	Title string

	check func(context.Context, *session) error
}

// Rule is a line of musts.txt.
type Rule struct {
	ID      string
	Manager bool // else it binds the client
	Text    string
}

//go:embed musts.txt
var musts string

// Rules are the requirements of the specification, parts 3 to 8.
func Rules() (out []Rule) {
	for line := range strings.Lines(musts) {
		part := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(part) == 3 && part[0] != "#" {
			out = append(out, Rule{ID: part[0], Manager: part[1] == "M", Text: part[2]})
		}
	}
	return out
}

// Cases are all cases, in the order in which they run.
func Cases() []Case {
	var out []Case
	for _, part := range [][]Case{identityCases(), capabilitiesCases(), statusCases(), manifestCases(), apiCases()} {
		out = append(out, part...)
	}
	return out
}

// skip says why a case cannot run.
type skip string

func (s skip) Error() string { return "needs " + string(s) }

// Outcomes of a case.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// Run runs the cases whose ids match; nil: all. An error says that the target itself cannot be used.
func Run(ctx context.Context, t Target, match *regexp.Regexp) (*Report, error) {
	s, err := newSession(t)
	if err != nil {
		return nil, err
	}
	defer s.close()
	r := &Report{Manager: t.BaseURL, Client: s.client.id.String(), Began: time.Now().UTC()}
	for _, c := range Cases() {
		if match != nil && !match.MatchString(c.ID) {
			continue
		}
		began := time.Now()
		err := c.check(ctx, s)
		result := Result{Case: c.ID, Rules: c.Rules, Title: c.Title, Outcome: Passed, Took: time.Since(began)}
		var why skip
		switch {
		case errors.As(err, &why):
			result.Outcome, result.Message = Skipped, why.Error()
		case err != nil:
			result.Outcome, result.Message = Failed, err.Error()
		}
		r.Results = append(r.Results, result)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	return r, nil
}

// spiffeID is what a certificate of a client says.
type spiffeID struct {
	domain, manager, client string
}

func (i spiffeID) String() string {
	return "spiffe://" + i.domain + "/margo/wfm/" + i.manager + "/client/" + i.client
}

func (i spiffeID) managerID() string { return "spiffe://" + i.domain + "/margo/wfm/" + i.manager }

var clientPath = regexp.MustCompile(`^/margo/wfm/([A-Za-z0-9._-]+)/client/([A-Za-z0-9._-]+)$`)

// identityOf reads the SPIFFE id of a client's certificate.
func identityOf(c tls.Certificate) (spiffeID, error) {
	if len(c.Certificate) == 0 {
		return spiffeID{}, errors.New("no certificate")
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		return spiffeID{}, err
	}
	if len(leaf.URIs) != 1 {
		return spiffeID{}, fmt.Errorf("the certificate has %d URIs, a client's has one", len(leaf.URIs))
	}
	return parseID(leaf.URIs[0])
}

func parseID(u *url.URL) (spiffeID, error) {
	part := clientPath.FindStringSubmatch(u.Path)
	if u.Scheme != "spiffe" || part == nil {
		return spiffeID{}, fmt.Errorf("%s is not spiffe://TRUST-DOMAIN/margo/wfm/MANAGER/client/CLIENT", u)
	}
	return spiffeID{u.Host, part[1], part[2]}, nil
}
