package artifacts

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	// PredicateCurrentState is the type of the in-toto statement in which a device says what it runs.
	PredicateCurrentState = "https://longshore.dev/current-state/v1"

	// MaxCurrentState bounds the signed bundle of a current state. A device with 100 components has 60 KiB.
	MaxCurrentState = 1 << 20

	currentStateFile = "current-state.sigstore.json"
	currentEnding    = ".current"

	statementV1    = "https://in-toto.io/Statement/v1"
	maxCurrentText = 2048 // bytes of one sentence
)

// CurrentTag is the tag under which a device reports its current state: "press-07.current".
func CurrentTag(tag string) string { return tag + currentEnding }

// CurrentState is what a device says about itself at one moment. Its device signs it as an in-toto statement whose subjects are
// the states that it names: [CurrentState.Encode].
type CurrentState struct {
	Device   DeviceID  `json:"device"`
	Epoch    string    `json:"epoch"`    // UUID of the agent's database; Counter and Sequence start at 1 in each
	Counter  uint64    `json:"counter"`  // from 1; each report of an epoch has the next number
	Sequence uint64    `json:"sequence"` // the place among the reports to a fleet endpoint, which it replaces if they are lower
	Time     time.Time `json:"time"`     // by the device's clock, which may be wrong
	BootID   string    `json:"bootId,omitempty"`
	Every    uint64    `json:"intervalSeconds,omitempty"` // in which it reports at least once; 0: it does not say

	Repository string             `json:"repository"` // of the states, "host/path"
	Accepted   *CurrentGeneration `json:"accepted,omitempty"`
	Running    *CurrentGeneration `json:"running,omitempty"` // that the device runs or changes to; nil: nothing
	Committed  *CurrentGeneration `json:"committed,omitempty"`
	Refused    *CurrentRefusal    `json:"refused,omitempty"` // nil: nothing was refused

	Deployments []CurrentDeployment `json:"deployments"`

	// Capabilities is the capabilities document that the device sends to a fleet endpoint, with the agent's extension.
	Capabilities json.RawMessage `json:"capabilities"`
}

// Due is when the next report is there at the latest, by the device's clock; zero: it does not say.
func (c *CurrentState) Due() time.Time {
	if c.Every == 0 {
		return time.Time{}
	}
	return c.Time.Add(time.Duration(min(c.Every, maxEvery)) * time.Second)
}

// maxEvery is about a century, in seconds: more is no time any more.
const maxEvery = 100 * 366 * 24 * 3600

// CurrentGeneration is one state of the device.
type CurrentGeneration struct {
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"` // of the state's manifest
}

// CurrentRefusal is a state that the device does not take.
type CurrentRefusal struct {
	Generation uint64        `json:"generation,omitempty"` // 0: not known
	Digest     digest.Digest `json:"digest"`
	Code       string        `json:"code"`
	Message    string        `json:"message"`
	Since      time.Time     `json:"since"`
}

// CurrentDeployment is one application of the device.
type CurrentDeployment struct {
	ID         string             `json:"id"` // UUID
	Name       string             `json:"name,omitempty"`
	Generation uint64             `json:"generation"`
	State      margo.State        `json:"state"`
	Since      time.Time          `json:"since"`
	Error      *margo.StatusError `json:"error,omitempty"`
	Components []CurrentComponent `json:"components"`
}

// CurrentComponent is one component of a deployment.
type CurrentComponent struct {
	Name     string             `json:"name"`
	Revision string             `json:"revision,omitempty"`
	Digest   digest.Digest      `json:"digest,omitempty"` // of the component's manifest; "": not known any more
	State    margo.State        `json:"state"`
	Since    time.Time          `json:"since"`
	Error    *margo.StatusError `json:"error,omitempty"`
	Images   []CurrentImage     `json:"images"` // of the containers that run
}

// CurrentImage is an image that runs.
type CurrentImage struct {
	Image      string `json:"image"` // "host/path@sha256:…"
	Containers uint64 `json:"containers"`
}

// States are the states that it names, each digest once.
func (c *CurrentState) States() []CurrentGeneration {
	var out []CurrentGeneration
	seen := map[digest.Digest]bool{}
	for _, g := range []*CurrentGeneration{c.Running, c.Accepted, c.Committed} {
		if g != nil && !seen[g.Digest] {
			seen[g.Digest] = true
			out = append(out, *g)
		}
	}
	return out
}

// Newer reports whether it was made after another one of the same device: by their numbers, or by the device's clock where its database
// began anew between them.
func (c *CurrentState) Newer(than *CurrentState) bool {
	if c.Epoch == than.Epoch {
		return c.Counter > than.Counter
	}
	return c.Time.After(than.Time)
}

// Status is the report on a deployment that the device sends to a fleet endpoint.
func (d CurrentDeployment) Status(device DeviceID) margo.DeploymentStatus {
	out := margo.DeploymentStatus{
		DeploymentID: d.ID, DeviceID: string(device), AdoptedManifestVersion: d.Generation,
		Status: margo.OverallStatus{State: d.State, Error: d.Error}, Components: []margo.ComponentStatus{},
	}
	for _, c := range d.Components {
		out.Components = append(out.Components, margo.ComponentStatus{Name: c.Name, State: c.State, Error: c.Error})
	}
	return out
}

type currentSubject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type currentStatement struct {
	Type          string           `json:"_type"`
	Subject       []currentSubject `json:"subject"`
	PredicateType string           `json:"predicateType"`
	Predicate     *CurrentState    `json:"predicate"`
}

// Encode writes the in-toto statement that the device signs. It parses again to the same.
func (c *CurrentState) Encode() ([]byte, error) {
	s := currentStatement{Type: statementV1, Subject: []currentSubject{}, PredicateType: PredicateCurrentState, Predicate: c}
	for _, g := range c.States() {
		s.Subject = append(s.Subject, currentSubject{c.Repository, map[string]string{g.Digest.Algorithm().String(): g.Digest.Encoded()}})
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write current state: %w", err)
	}
	if _, err := ParseCurrentState("current state", data); err != nil {
		return nil, fmt.Errorf("write current state: %w", err)
	}
	return data, nil
}

var (
	epochFormat   = strict.Expression(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	imageFormat   = strict.Short(`^[!-~]+@sha256:[0-9a-f]{64}$`, 1100)
	runStates     = []string{"pending", "installing", "installed", "failed", "removing", "removed"}
	sentenceWords = fmt.Sprintf("a text of at most %d bytes", maxCurrentText)
)

// ParseCurrentState reads the statement of a current state; file names it in errors. Objects of ours are closed. Nothing of it is
// trusted before the signature is. The error is a *[strict.Error], or wraps fault.ErrInvalid.
func ParseCurrentState(file string, statement []byte) (*CurrentState, error) {
	if len(statement) > MaxCurrentState {
		return nil, fmt.Errorf("%s: %d bytes, more than %d: %w", file, len(statement), MaxCurrentState, fault.ErrTooLarge)
	}
	root, err := strict.JSON(file, statement)
	if err != nil {
		return nil, err
	}
	root.Need("_type").OneOf(statementV1)
	root.Need("predicateType").OneOf(PredicateCurrentState)
	var subjects []string
	for _, n := range root.Need("subject").Items() {
		n.Get("name").Text()
		subjects = append(subjects, n.Need("digest").Need("sha256").Text())
	}
	c := currentState(root.Need("predicate"))
	root.Close()
	if err := root.Err(); err != nil {
		return nil, err
	}
	states := c.States()
	if len(states) != len(subjects) {
		return nil, fmt.Errorf("%s: %d subjects for %d states: %w", file, len(subjects), len(states), fault.ErrInvalid)
	}
	for i, g := range states {
		if g.Digest.Encoded() != subjects[i] {
			return nil, fmt.Errorf("%s: subject %d is not the state %s: %w", file, i+1, g.Digest, fault.ErrInvalid)
		}
	}
	doc, err := capabilitiesIn(statement)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	about, err := margo.ParseDeviceCapabilities(file+": capabilities", doc)
	if err != nil {
		return nil, err
	}
	if about.Properties.ID != string(c.Device) {
		return nil, fmt.Errorf("%s: capabilities of %q in the report of %q: %w", file, about.Properties.ID, c.Device, fault.ErrInvalid)
	}
	c.Capabilities = doc
	return c, nil
}

// capabilitiesIn cuts the document out as it was signed. The strict reader has refused members that are there twice.
func capabilitiesIn(statement []byte) (json.RawMessage, error) {
	var s struct {
		Predicate struct {
			Capabilities json.RawMessage `json:"capabilities"`
		} `json:"predicate"`
	}
	if err := json.Unmarshal(statement, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	return s.Predicate.Capabilities, nil
}

func currentState(n *strict.Node) *CurrentState {
	c := &CurrentState{
		Epoch:       n.Need("epoch").Matching(epochFormat, "a UUID"),
		Counter:     fromOne(n.Need("counter")),
		Sequence:    fromOne(n.Need("sequence")),
		Time:        instant(n.Need("time")),
		BootID:      n.Get("bootId").Matching(epochFormat, "a UUID"),
		Every:       n.Get("intervalSeconds").Uint64(),
		Repository:  n.Need("repository").Matching(repositoryText, "a repository"),
		Accepted:    currentGeneration(n.Get("accepted")),
		Running:     currentGeneration(n.Get("running")),
		Committed:   currentGeneration(n.Get("committed")),
		Deployments: []CurrentDeployment{},
	}
	id := n.Need("device")
	if text := id.Text(); id.Kind() == strict.String {
		var err error
		if c.Device, err = ParseDeviceID(text); err != nil {
			id.Faultf("not a device id")
		}
	}
	if r := n.Get("refused"); r != nil {
		c.Refused = &CurrentRefusal{
			Generation: r.Get("generation").Uint64(), Digest: margo.ReadDigest(r.Need("digest")),
			Code: sentence(r.Need("code")), Message: sentence(r.Need("message")), Since: instant(r.Need("since")),
		}
		r.Close()
	}
	for _, d := range n.Need("deployments").Items() {
		c.Deployments = append(c.Deployments, currentDeployment(d))
	}
	n.Need("capabilities")
	n.Close()
	return c
}

func currentGeneration(n *strict.Node) *CurrentGeneration {
	if n == nil {
		return nil
	}
	g := &CurrentGeneration{Generation: fromOne(n.Need("generation")), Digest: margo.ReadDigest(n.Need("digest"))}
	n.Close()
	return g
}

func currentDeployment(n *strict.Node) CurrentDeployment {
	d := CurrentDeployment{
		ID: n.Need("id").Matching(epochFormat, "a UUID"), Name: sentence(n.Get("name")), Generation: n.Need("generation").Uint64(),
		State: runState(n), Since: instant(n.Need("since")), Error: statusError(n.Get("error")), Components: []CurrentComponent{},
	}
	for _, x := range n.Need("components").Items() {
		c := CurrentComponent{
			Name: sentence(x.Need("name")), Revision: sentence(x.Get("revision")), State: runState(x), Since: instant(x.Need("since")),
			Error: statusError(x.Get("error")), Images: []CurrentImage{},
		}
		if at := x.Get("digest"); at != nil {
			c.Digest = margo.ReadDigest(at)
		}
		for _, i := range x.Need("images").Items() {
			c.Images = append(c.Images, CurrentImage{Image: i.Need("image").Matching(imageFormat, "an image by digest"), Containers: fromOne(i.Need("containers"))})
			i.Close()
		}
		x.Close()
		d.Components = append(d.Components, c)
	}
	n.Close()
	return d
}

func runState(n *strict.Node) margo.State {
	return margo.State(n.Need("state").OneOf(runStates...))
}

func statusError(n *strict.Node) *margo.StatusError {
	if n == nil {
		return nil
	}
	e := &margo.StatusError{Code: sentence(n.Need("code")), Source: sentence(n.Need("source")), Message: sentence(n.Need("message"))}
	n.Close()
	return e
}

// fromOne is a number that counts from 1.
func fromOne(n *strict.Node) uint64 {
	v := n.Uint64()
	if n.Kind() == strict.Number && v == 0 {
		n.Faultf("must be at least 1")
	}
	return v
}

func sentence(n *strict.Node) string {
	s := n.Text()
	if len(s) > maxCurrentText {
		n.Faultf("must be %s", sentenceWords)
	}
	return s
}

// PackCurrentState makes the artifact of a current state from the sigstore bundle of its signed statement. The annotations help
// to find it; what counts is in the bundle.
func PackCurrentState(c *CurrentState, bundle []byte) (_ *Artifact, err error) {
	defer during(&err, "pack current state")
	if len(bundle) == 0 || len(bundle) > MaxCurrentState {
		return nil, fmt.Errorf("a bundle of %d bytes, more than %d or none: %w", len(bundle), MaxCurrentState, fault.ErrTooLarge)
	}
	return pack(TypeCurrentState, []Blob{layer(TypeCurrentBundle, currentStateFile, bundle)}, c.Time, map[string]string{
		AnnotationDevice:        string(c.Device),
		AnnotationCounter:       fmt.Sprint(c.Counter),
		ocispec.AnnotationTitle: string(c.Device) + currentEnding,
	}, nil)
}

// CurrentStateIndex is what the manifest of a current state says. Nothing in it is signed.
type CurrentStateIndex struct {
	Device  string
	Counter uint64
	Bundle  ocispec.Descriptor
}

// OpenCurrentState checks the manifest of a current state: its types, its annotations, its layer and its size.
func OpenCurrentState(manifest []byte) (_ *CurrentStateIndex, err error) {
	defer during(&err, "open current state")
	i, err := open(manifest, TypeCurrentState)
	if err != nil {
		return nil, err
	}
	x := &CurrentStateIndex{Device: i.annotations[AnnotationDevice], Bundle: i.layers[0]}
	if x.Counter, err = i.number(AnnotationCounter); err != nil {
		return nil, err
	}
	if len(i.layers) != 1 {
		return nil, fmt.Errorf("%d layers, want one: %w", len(i.layers), fault.ErrInvalid)
	}
	if err := layerIs("layer", x.Bundle, TypeCurrentBundle, MaxCurrentState); err != nil {
		return nil, err
	}
	return x, nil
}

// Read fetches the bundle; the bytes are hashed here whatever blob did.
func (x *CurrentStateIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (_ []byte, err error) {
	defer during(&err, "read current state")
	return fetch(blob, x.Bundle)
}

// PeekCurrentState reads the statement in a bundle without looking at its signature: to sort reports, not to believe them.
func PeekCurrentState(bundle []byte) (*CurrentState, error) {
	if len(bundle) > MaxCurrentState {
		return nil, fmt.Errorf("read current state: %d bytes, more than %d: %w", len(bundle), MaxCurrentState, fault.ErrTooLarge)
	}
	var b struct {
		Envelope struct {
			Payload []byte `json:"payload"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(bundle, &b); err != nil {
		return nil, fmt.Errorf("read current state: %w: %w", fault.ErrInvalid, err)
	}
	return ParseCurrentState("current state", b.Envelope.Payload)
}
